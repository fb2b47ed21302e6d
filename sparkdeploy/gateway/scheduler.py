"""Which model of a stack runs: requests in order, the smallest stay, drains and starts.

It does nothing itself and reads no clock: it is given events with their time and returns orders.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from sparkdeploy.gateway.fit import StackFit
from sparkdeploy.gateway.stack import ModelEntry

DRAIN_LIMIT_S = 300.0
"""How long running requests of a model may hold up the start of another one."""
BACK_OFF_S = 30.0
LONGEST_BACK_OFF_S = 900.0
LONGEST_START_S = 3600.0
"""So long what others began may be starting where another model waits for its memory."""
STOP_S = 15.0
"""What ending a server takes, for estimates."""


class ModelPhase(Enum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"

    @property
    def takes_memory(self) -> bool:
        return self not in {ModelPhase.STOPPED, ModelPhase.FAILED}


class Sighting(Enum):
    """What a look at a deployment shows."""

    STOPPED = "stopped"
    DEAD = "dead"
    STARTING = "starting"
    HEALTHY = "healthy"


class Act(Enum):
    SEND = "send"
    REFUSE = "refuse"
    CUT = "cut"
    START = "start"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Instruction:
    act: Act
    model: str
    request: int = 0
    cause: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    request: int
    """0: nobody waits any more, and the model is to be started all the same."""
    model: str
    since_s: float
    patience_s: float


@dataclass(slots=True)
class ModelState:
    model: ModelEntry
    phase: ModelPhase = ModelPhase.STOPPED
    since_s: float = -math.inf
    """When this phase began."""
    ready_s: float = -math.inf
    used_s: float = -math.inf
    is_ours: bool = False
    """Whether an order of this scheduler is being carried out."""
    is_leaving: bool = False
    """Whether somebody has asked for its stop."""
    is_in_the_way: bool = False
    """Whether another model that is waited for needs its memory."""
    cause: str = ""
    """Of the last failed start, or death."""
    failures: int = 0
    start_s: float | None = None
    """What its last start took."""
    running: set[int] = field(default_factory=set)

    def enter(self, phase: ModelPhase, now_s: float) -> None:
        if phase is not self.phase:
            self.phase, self.since_s = phase, now_s

    @property
    def back_off_s(self) -> float:
        return min(BACK_OFF_S * 2.0 ** min(self.failures - 1, 10), LONGEST_BACK_OFF_S)

    def back_off_left_s(self, now_s: float) -> float:
        left_s = self.since_s + self.back_off_s - now_s
        return left_s if self.phase is ModelPhase.FAILED and left_s > 0 else 0.0


class Scheduler:
    """The states of all models and the queue; `decide` returns what is to be done now."""

    def __init__(
        self,
        models: Iterable[ModelEntry],
        fit: StackFit,
        *,
        smallest_stay_s: float,
        drain_limit_s: float = DRAIN_LIMIT_S,
        measured_s: Mapping[str, float] | None = None,
    ) -> None:
        """`measured_s` is what the last start of each model took, as far as that is known."""
        known = measured_s or {}
        self.states = {it.name: ModelState(it, start_s=known.get(it.name)) for it in models}
        self.queue: list[Waiting] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        """By what happened (swaps, starts, failed_starts, refusals, served) and model."""
        self._fit = fit
        self._stay_s = smallest_stay_s
        self._drain_limit_s = drain_limit_s

    def arrive(self, request: int, model: str, now_s: float, patience_s: float = math.inf) -> None:
        """Queue a request; one that would wait for longer than `patience_s` is refused."""
        self.queue.append(Waiting(request, model, now_s, patience_s))
        state = self.states[model]
        # Clients that go on asking do not undo what a person has asked for.
        state.is_leaving &= state.phase in {ModelPhase.READY, ModelPhase.DRAINING}

    def want(self, model: str, now_s: float) -> None:
        """Have a model started for no request in particular."""
        self.states[model].is_leaving = False
        if not any(it.model == model for it in self.queue):
            self.queue.append(Waiting(0, model, now_s, math.inf))

    def leave(self, request: int, model: str, now_s: float) -> None:
        """Forget a request that was answered, or whose client has gone."""
        state = self.states[model]
        if request in state.running:
            state.running.remove(request)
            state.used_s = now_s
        self.queue = [it for it in self.queue if it.request != request or not request]

    def stop(self, model: str) -> None:
        """Have a model stopped once its requests are answered; waiting ones are refused."""
        self.states[model].is_leaving = True

    def started(self, model: str, took_s: float, now_s: float) -> None:
        state = self.states[model]
        state.start_s, state.failures, state.cause = took_s, 0, ""
        self._make_ready(state, now_s)

    def start_failed(self, model: str, cause: str, now_s: float) -> None:
        state = self.states[model]
        state.failures += 1
        state.cause, state.is_ours = cause, False
        state.enter(ModelPhase.FAILED, now_s)
        self.counts["failed_starts", model] += 1

    def stopped(self, model: str, now_s: float) -> None:
        state = self.states[model]
        state.is_ours = state.is_leaving = False
        state.enter(ModelPhase.STOPPED, now_s)

    def stop_failed(self, model: str) -> None:
        state = self.states[model]
        state.is_ours = state.is_leaving = False

    def observed(self, model: str, seen: Sighting, now_s: float, cause: str = "") -> None:
        """Take note of what others did with a deployment, or what became of it."""
        state = self.states[model]
        if state.is_ours:
            return
        if seen is Sighting.HEALTHY:
            if state.phase not in {ModelPhase.READY, ModelPhase.DRAINING}:
                self._make_ready(state, now_s)
        elif seen is Sighting.STARTING:
            # One that falls silent while it drains is stopped all the same.
            if state.phase is not ModelPhase.DRAINING:
                state.enter(ModelPhase.STARTING, now_s)
        elif state.phase.takes_memory:
            state.cause = cause
            state.enter(ModelPhase.STOPPED, now_s)
        elif cause and state.phase is ModelPhase.STOPPED:
            state.cause = cause

    def _make_ready(self, state: ModelState, now_s: float) -> None:
        state.is_ours = False
        state.ready_s = state.used_s = now_s
        state.enter(ModelPhase.READY, now_s)

    def decide(self, now_s: float) -> list[Instruction]:
        """Return the orders of this moment; the states have changed as if they were carried out."""
        return [*self._refuse(now_s), *self._send(), *self._swap(now_s), *self._end_idle(now_s)]

    def next_change_s(self, now_s: float) -> float:
        """Return when `decide` may have something to do though nothing has happened."""
        moments = [it.since_s + it.patience_s for it in self.queue]
        for state in self.states.values():
            if state.phase is ModelPhase.FAILED:
                moments.append(state.since_s + state.back_off_s)
            elif state.phase is ModelPhase.DRAINING:
                moments.append(state.since_s + self._drain_limit_s)
            elif state.phase is ModelPhase.STARTING:
                moments.append(state.since_s + LONGEST_START_S)
            elif state.phase is ModelPhase.READY:
                idle_s = state.model.idle_stop_s or 0
                moments += [state.ready_s + self._stay_s, state.used_s + idle_s]
        return min((it for it in moments if it > now_s), default=math.inf)

    def wait_s(self, model: str, now_s: float) -> float | None:
        """Return how long a request that comes now would wait; None where nobody knows."""
        state = self.states[model]
        if state.phase is ModelPhase.READY:
            return 0.0
        if state.start_s is None:
            return None
        if state.phase is ModelPhase.STARTING:
            return max(state.start_s - (now_s - state.since_s), 0.0)
        occupied = self._occupied()
        if self._fit.fits(occupied - {model}, model):
            return state.start_s
        victims = self._victims(occupied - {model}, model) or ()
        stays = [self._stay_left_s(self.states[it], now_s) for it in victims]
        return max(stays, default=0.0) + STOP_S + state.start_s

    def _occupied(self) -> set[str]:
        return {name for name, it in self.states.items() if it.phase.takes_memory}

    def _stay_left_s(self, state: ModelState, now_s: float) -> float:
        if state.phase is ModelPhase.STARTING:
            return self._stay_s
        return max(state.ready_s + self._stay_s - now_s, 0.0)

    def _victims(self, running: set[str], wanted: str) -> tuple[str, ...] | None:
        known = {name: it.start_s for name, it in self.states.items() if it.start_s is not None}
        # What has begun to leave goes on leaving.
        leaving = {it for it in running if self.states[it].phase is ModelPhase.DRAINING}
        return self._fit.cheapest_eviction(running, wanted, known | dict.fromkeys(leaving, 0.0))

    def _refuse(self, now_s: float) -> Iterator[Instruction]:
        """Refuse what cannot be served in time: the model is started all the same."""
        kept: list[Waiting] = []
        wished: dict[str, Waiting] = {}
        for item in self.queue:
            refusal = self._refusal(item, now_s)
            if refusal is None:
                kept.append(item)
                continue
            if item.request:
                self.counts["refusals", item.model] += 1
                yield refusal
            state = self.states[item.model]
            if not (state.is_leaving or state.back_off_left_s(now_s)):
                wished.setdefault(item.model, Waiting(0, item.model, item.since_s, math.inf))
        waited_for = {it.model for it in kept}
        self.queue = kept + [it for it in wished.values() if it.model not in waited_for]
        self.queue.sort(key=lambda it: it.since_s)

    def _refusal(self, item: Waiting, now_s: float) -> Instruction | None:
        state, name = self.states[item.model], item.model
        if state.is_leaving:
            return Instruction(Act.REFUSE, name, item.request, f"{name} is being stopped")
        if left_s := state.back_off_left_s(now_s):
            cause = f"{name} did not start: {state.cause}"
            return Instruction(Act.REFUSE, name, item.request, cause, left_s)
        if not state.phase.takes_memory and self._never_fits(name):
            cause = f"{name} does not fit beside what `keep: always` keeps"
            return Instruction(Act.REFUSE, name, item.request, cause)
        if state.phase is ModelPhase.READY or not item.request:
            return None
        left_s = self.wait_s(name, now_s) or 0.0
        waited_s = now_s - item.since_s
        if waited_s < item.patience_s and waited_s + left_s <= item.patience_s:
            return None
        cause = f"{name} is not ready yet ({state.phase.value}), and this would wait too long"
        return Instruction(Act.REFUSE, name, item.request, cause, max(left_s, 1.0))

    def _never_fits(self, wanted: str) -> bool:
        kept = {name for name, it in self.states.items() if it.model.keep == "always"}
        return not self._fit.fits(kept - {wanted}, wanted)

    def _send(self) -> Iterator[Instruction]:
        kept: list[Waiting] = []
        for item in self.queue:
            state = self.states[item.model]
            if state.phase is not ModelPhase.READY:
                kept.append(item)
            elif item.request:
                state.running.add(item.request)
                self.counts["served", item.model] += 1
                yield Instruction(Act.SEND, item.model, item.request)
        self.queue = kept

    def _swap(self, now_s: float) -> Iterator[Instruction]:
        """Start what is waited for, the longest waiting first, and drain what is in its way."""
        # What comes later takes no memory that an earlier one waits for.
        occupied = self._occupied()
        going = {ModelPhase.DRAINING, ModelPhase.STOPPING}
        planned = {name for name in occupied if self.states[name].phase not in going}
        reserved: set[str] = set()
        victims: set[str] = set()
        for wanted in dict.fromkeys(it.model for it in self.queue):
            state = self.states[wanted]
            if state.phase is ModelPhase.STARTING:
                reserved.add(wanted)
                if not state.is_ours:
                    yield self._start(state, now_s)  # what somebody else began is waited for
                continue
            draining = {
                it for it in occupied - planned if self.states[it].phase is ModelPhase.DRAINING
            }
            others = (planned | draining) - {wanted}
            evicted = () if self._fit.fits(others, wanted) else self._victims(others, wanted)
            if evicted is None or reserved & set(evicted):
                continue
            reserved.add(wanted)
            victims.update(evicted)
            planned = (planned - set(evicted)) | {wanted}
            if state.phase is ModelPhase.STOPPING or state.phase is ModelPhase.DRAINING:
                continue
            if self._fit.fits(occupied, wanted):
                occupied.add(wanted)
                yield self._start(state, now_s)
        self._drain(victims, now_s)

    def _drain(self, victims: set[str], now_s: float) -> None:
        """Let what is in the way take no more requests once it has stayed; others go on."""
        for name, state in self.states.items():
            state.is_in_the_way = name in victims
            wanted_gone = state.is_in_the_way or state.is_leaving
            if wanted_gone and self._may_go(state, now_s):
                state.enter(ModelPhase.DRAINING, now_s)
            elif state.phase is ModelPhase.DRAINING and not wanted_gone and state.running:
                state.enter(ModelPhase.READY, now_s)

    def _may_go(self, state: ModelState, now_s: float) -> bool:
        if state.phase is ModelPhase.STARTING and not state.is_ours:
            return state.is_leaving or now_s - state.since_s >= LONGEST_START_S
        has_stayed = state.is_leaving or not self._stay_left_s(state, now_s)
        return state.phase is ModelPhase.READY and has_stayed

    def _start(self, state: ModelState, now_s: float) -> Instruction:
        state.is_ours = True
        state.enter(ModelPhase.STARTING, now_s)
        self.counts["starts", state.model.name] += 1
        return Instruction(Act.START, state.model.name)

    def _end_idle(self, now_s: float) -> Iterator[Instruction]:
        """Stop what nobody asks for any more, and what has answered its last request."""
        for name, state in self.states.items():
            if state.phase is ModelPhase.READY and self._is_idle(state, now_s):
                state.enter(ModelPhase.DRAINING, now_s)
            if state.phase is not ModelPhase.DRAINING:
                continue
            if state.running and now_s - state.since_s >= self._drain_limit_s:
                cause = f"{name} was stopped: this request went on for too long beside another"
                yield from (Instruction(Act.CUT, name, it, cause) for it in sorted(state.running))
                state.running.clear()
            if not state.running:
                self.counts["swaps", name] += state.is_in_the_way
                state.is_ours = True
                state.enter(ModelPhase.STOPPING, now_s)
                yield Instruction(Act.STOP, name)

    def _is_idle(self, state: ModelState, now_s: float) -> bool:
        model = state.model
        idle_s = {"always": None, "idle": model.idle_stop_s, "request": 0}[model.keep]
        if idle_s is None or state.running or self._stay_left_s(state, now_s):
            return False
        return now_s - state.used_s >= idle_s
