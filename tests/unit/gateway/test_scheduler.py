"""Laws of the gateway's scheduler over random arrivals with a faked clock, and single cases."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.gateway.fit import ModelFit, StackFit
from sparkdeploy.gateway.scheduler import (
    BACK_OFF_S,
    LONGEST_BACK_OFF_S,
    LONGEST_START_S,
    STOP_S,
    Act,
    Instruction,
    ModelPhase,
    Scheduler,
    Sighting,
)
from sparkdeploy.gateway.stack import Keep, ModelEntry

STAY_S, DRAIN_S, STOP_TOOK_S = 60.0, 120.0, 5.0
NAMES = ("a", "b", "c", "d")


def model(name: str, keep: Keep, idle_stop_s: int | None = None) -> ModelEntry:
    return ModelEntry(name=name, recipe="r", keep=keep, idle_stop_s=idle_stop_s)


def fit_of(models: Iterable[ModelEntry], sizes: Iterable[int]) -> StackFit:
    """Each model takes so much of a memory of ten."""
    pairs = zip(models, sizes, strict=False)
    return StackFit({"it": 10}, tuple(ModelFit(m.name, m.keep, {"it": size}) for m, size in pairs))


@dataclass(frozen=True)
class Arrival:
    at_s: float
    model: str
    takes_s: float
    patience_s: float
    leaves_after_s: float


@dataclass
class World:
    """Carries out orders in faked time, and remembers what became of each request."""

    scheduler: Scheduler
    fit: StackFit
    start_s: Mapping[str, float]
    failing: set[int]
    """Which starts fail, by their number."""
    now_s: float = 0.0
    running: set[str] = field(default_factory=set)
    answers: dict[int, str] = field(default_factory=dict)
    ended_s: dict[int, float] = field(default_factory=dict)
    stops: list[str] = field(default_factory=list)
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    starts: int = 0
    _events: list[tuple[float, int, str, str, int]] = field(default_factory=list)
    _number: itertools.count[int] = field(default_factory=itertools.count)

    def at(self, in_s: float, what: str, model: str, request: int = 0) -> None:
        heapq.heappush(self._events, (self.now_s + in_s, next(self._number), what, model, request))

    def play(self, arrivals: Iterable[Arrival]) -> None:
        for request, arrival in enumerate(arrivals, 1):
            self.arrivals[request] = arrival
            self.at(arrival.at_s, "arrive", arrival.model, request)
        until_s = 1e6
        while self._events and self.now_s < until_s:
            self.now_s, _, what, model, request = heapq.heappop(self._events)
            self._happens(what, model, request)
            for order in self.scheduler.decide(self.now_s):
                self._carry_out(order)
            wake_s = self.scheduler.next_change_s(self.now_s)
            is_next = not self._events or self._events[0][0] > wake_s
            if wake_s < math.inf and is_next and len(self.answers) < len(self.arrivals):
                self.at(wake_s - self.now_s, "wake", "")
        assert self.now_s < until_s, "it never comes to an end"

    def _happens(self, what: str, model: str, request: int) -> None:
        scheduler, now_s = self.scheduler, self.now_s
        if what == "arrive":
            arrival = self.arrivals[request]
            scheduler.arrive(request, model, now_s, arrival.patience_s)
            self.at(arrival.leaves_after_s, "client leaves", model, request)
        elif what == "client leaves" and request not in self.answers:
            self._answer(request, "left")
            scheduler.leave(request, model, now_s)
        elif what == "answered" and self.answers.get(request) == "sent":
            self._answer(request, "answered")
            scheduler.leave(request, model, now_s)
        elif what == "started":
            scheduler.started(model, self.start_s[model], now_s)
        elif what == "failed":
            self.running.discard(model)
            scheduler.start_failed(model, "out of memory", now_s)
        elif what == "stopped":
            self.running.discard(model)
            scheduler.stopped(model, now_s)

    def _answer(self, request: int, how: str) -> None:
        self.answers[request] = how
        self.ended_s.setdefault(request, self.now_s)

    def _carry_out(self, order: Instruction) -> None:
        model = order.model
        if order.act is Act.START:
            assert self.fit.fits(self.running, model), (self.running, model)
            self.running.add(model)
            self.starts += 1
            how = "failed" if self.starts in self.failing else "started"
            self.at(self.start_s[model], how, model)
        elif order.act is Act.STOP:
            self.stops.append(model)
            self.at(STOP_TOOK_S, "stopped", model)
        elif order.act is Act.SEND:
            assert order.request not in self.answers
            assert model == self.arrivals[order.request].model
            # It may begin to drain at the same moment.
            assert self.scheduler.states[model].phase in {ModelPhase.READY, ModelPhase.DRAINING}
            self._answer(order.request, "sent")
            self.at(self.arrivals[order.request].takes_s, "answered", model, order.request)
        else:
            how = "refused" if order.act is Act.REFUSE else "cut"
            assert (self.answers.get(order.request) == "sent") is (how == "cut")
            self._answer(order.request, how)


seconds = st.integers(0, 400).map(float)
arrivals = st.builds(
    Arrival,
    at_s=st.integers(0, 3000).map(float),
    model=st.sampled_from(NAMES),
    takes_s=seconds,
    patience_s=st.sampled_from([math.inf, math.inf, 30.0, 600.0]),
    leaves_after_s=st.sampled_from([math.inf, math.inf, 1.0, 200.0]).map(
        lambda it: min(it, 5e5)  # long after all waits are over
    ),
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    keeps: st.SearchStrategy[Keep] = st.sampled_from(["idle", "idle", "request"])
    models = [
        model(name, draw(keeps), draw(st.sampled_from([None, None, 30, 300]))) for name in NAMES
    ]
    fit = fit_of(models, [draw(st.integers(1, 10)) for _ in NAMES])
    scheduler = Scheduler(models, fit, smallest_stay_s=STAY_S, drain_limit_s=DRAIN_S)
    start_s = {name: float(draw(st.integers(1, 200))) for name in NAMES}
    return World(scheduler, fit, start_s, draw(st.sets(st.integers(1, 12), max_size=4)))


@given(worlds(), st.lists(arrivals, max_size=40))
def test_each_request_is_answered_once_within_a_bound(world: World, asked: list[Arrival]) -> None:
    world.play(asked)
    assert len(world.answers) == len(asked), "a request was lost"
    assert not world.scheduler.queue or not any(it.request for it in world.scheduler.queue)
    # All others may have their turn first: each starts, stays, drains and stops.
    turn_s = max(world.start_s.values()) + STAY_S + DRAIN_S + STOP_TOOK_S
    bound_s = (2 * len(NAMES) + 1) * turn_s
    for request, arrival in world.arrivals.items():
        waited_s = world.ended_s[request] - arrival.at_s
        assert waited_s <= min(bound_s, arrival.patience_s), world.answers[request]
    # No model is stopped for another before it has stayed.
    for name in NAMES:
        swaps = world.scheduler.counts["swaps", name]
        assert swaps <= world.stops.count(name) <= world.now_s / STAY_S + 1


def scheduler_of(*keeps: Keep, sizes: Iterable[int] = (6, 6, 4)) -> Scheduler:
    names = NAMES[: len(keeps)]
    models = [model(name, keep) for name, keep in zip(names, keeps, strict=True)]
    return Scheduler(models, fit_of(models, sizes), smallest_stay_s=STAY_S, drain_limit_s=DRAIN_S)


def acts(orders: Iterable[Instruction]) -> list[tuple[Act, str, int]]:
    return [(it.act, it.model, it.request) for it in orders]


def ready(scheduler: Scheduler, model: str, now_s: float) -> None:
    scheduler.want(model, now_s)
    assert acts(scheduler.decide(now_s)) == [(Act.START, model, 0)]
    scheduler.started(model, 30.0, now_s)
    assert scheduler.decide(now_s) == []


def serving(*keeps: Keep) -> Scheduler:
    """Return a scheduler whose first model has started."""
    scheduler = scheduler_of(*keeps)
    ready(scheduler, "a", 0)
    return scheduler


def asked(*keeps: Keep) -> Scheduler:
    """As `serving`, with a request for that model."""
    scheduler = serving(*keeps)
    scheduler.arrive(1, "a", 1)
    scheduler.decide(1)
    return scheduler


def test_two_models_wanted_in_turns_stay_and_serve_in_batches() -> None:
    scheduler = serving("idle", "idle")
    scheduler.states["b"].start_s = 30.0
    assert scheduler.wait_s("b", 1) == STAY_S - 1 + STOP_S + 30
    scheduler.arrive(1, "b", 1)
    scheduler.arrive(2, "a", 2)
    assert acts(scheduler.decide(2)) == [(Act.SEND, "a", 2)]
    assert scheduler.next_change_s(2) == STAY_S
    assert acts(scheduler.decide(STAY_S)) == []
    assert scheduler.states["a"].phase is ModelPhase.DRAINING
    scheduler.arrive(3, "a", 61)
    assert scheduler.decide(61) == []
    scheduler.leave(2, "a", 62)
    assert acts(scheduler.decide(62)) == [(Act.STOP, "a", 0)]
    scheduler.stopped("a", 63)
    assert acts(scheduler.decide(63)) == [(Act.START, "b", 0)]
    scheduler.started("b", 30, 93)
    assert acts(scheduler.decide(93)) == [(Act.SEND, "b", 1)]
    assert scheduler.counts["swaps", "a"] == 1


def test_a_model_that_fits_beside_is_started_at_once() -> None:
    scheduler = serving("idle", "idle", "idle")
    scheduler.arrive(1, "b", 1)
    scheduler.arrive(2, "c", 2)
    assert acts(scheduler.decide(2)) == [(Act.START, "c", 0)]


def test_a_request_that_goes_on_for_too_long_is_cut() -> None:
    scheduler = asked("idle", "idle")
    scheduler.arrive(2, "b", 2)
    assert scheduler.decide(STAY_S) == []
    orders = scheduler.decide(STAY_S + DRAIN_S)
    assert acts(orders) == [(Act.CUT, "a", 1), (Act.STOP, "a", 0)]


def test_a_drained_model_goes_on_when_nobody_waits_for_the_other() -> None:
    scheduler = serving("idle", "idle")
    scheduler.arrive(1, "a", 1)
    scheduler.arrive(2, "b", 2)
    scheduler.decide(STAY_S)
    assert scheduler.states["a"].phase is ModelPhase.DRAINING
    scheduler.leave(2, "b", 70)
    scheduler.arrive(3, "a", 70)
    scheduler.decide(70)
    assert acts(scheduler.decide(70)) == [(Act.SEND, "a", 3)]


def test_a_failed_start_is_refused_with_its_cause_and_tried_again_later() -> None:
    scheduler = scheduler_of("idle")
    scheduler.arrive(1, "a", 0)
    scheduler.decide(0)
    scheduler.start_failed("a", "no GPU", 10)
    (refusal,) = scheduler.decide(10)
    assert (refusal.act, refusal.request) == (Act.REFUSE, 1)
    assert "no GPU" in refusal.cause
    assert refusal.retry_after_s == BACK_OFF_S
    scheduler.arrive(2, "a", 11)
    assert acts(scheduler.decide(11)) == [(Act.REFUSE, "a", 2)]
    scheduler.arrive(3, "a", 10 + BACK_OFF_S)
    assert acts(scheduler.decide(10 + BACK_OFF_S)) == [(Act.START, "a", 0)]
    for _ in range(2000):
        scheduler.start_failed("a", "no GPU", 50)
    assert scheduler.states["a"].back_off_left_s(50) == LONGEST_BACK_OFF_S
    scheduler.started("a", 5, 60)
    scheduler.start_failed("a", "no GPU", 70)
    assert scheduler.states["a"].back_off_left_s(70) == BACK_OFF_S


def test_a_request_without_patience_has_the_model_started_all_the_same() -> None:
    scheduler = scheduler_of("idle")
    scheduler.states["a"].start_s = 780.0
    scheduler.arrive(1, "a", 0, patience_s=600)
    refusal, start = scheduler.decide(0)
    assert (refusal.act, refusal.retry_after_s) == (Act.REFUSE, 780.0)
    assert start == Instruction(Act.START, "a")
    scheduler.arrive(2, "a", 180, patience_s=600)
    assert scheduler.decide(180) == [], "who comes later waits for what is left of the start"


def test_what_is_always_kept_is_never_stopped() -> None:
    scheduler = serving("always", "idle")
    scheduler.arrive(1, "b", 1000)
    (refusal,) = scheduler.decide(1000)
    assert refusal.act is Act.REFUSE
    assert "always" in refusal.cause
    assert scheduler.decide(1e9) == []


def test_a_model_for_requests_alone_goes_after_the_last_one() -> None:
    scheduler = asked("request")
    assert scheduler.decide(STAY_S + 1) == []
    scheduler.leave(1, "a", STAY_S + 2)
    assert acts(scheduler.decide(STAY_S + 2)) == [(Act.STOP, "a", 0)]


def test_an_idle_model_stops_so_long_after_its_last_request() -> None:
    models = [model("a", "idle", 300)]
    scheduler = Scheduler(models, fit_of(models, (1,)), smallest_stay_s=STAY_S)
    ready(scheduler, "a", 0)
    scheduler.arrive(1, "a", 200)
    scheduler.decide(200)
    scheduler.leave(1, "a", 250)
    assert scheduler.next_change_s(250) == 550
    assert scheduler.decide(549) == []
    assert acts(scheduler.decide(550)) == [(Act.STOP, "a", 0)]


def test_what_others_do_is_seen() -> None:
    scheduler = scheduler_of("idle")
    scheduler.observed("a", Sighting.STARTING, 0)
    scheduler.arrive(1, "a", 1)
    assert acts(scheduler.decide(1)) == [(Act.START, "a", 0)], "it is waited for"
    scheduler.observed("a", Sighting.STOPPED, 2)
    assert acts(scheduler.decide(3)) == [], "our own order decides"
    scheduler.started("a", 5, 6)
    assert acts(scheduler.decide(6)) == [(Act.SEND, "a", 1)]
    scheduler.observed("a", Sighting.DEAD, 7, "the GPU ran out of memory")
    died = scheduler.states["a"]
    assert (died.phase, died.cause) == (ModelPhase.STOPPED, "the GPU ran out of memory")
    scheduler.leave(1, "a", 7)
    scheduler.arrive(2, "a", 8)
    assert acts(scheduler.decide(8)) == [(Act.START, "a", 0)]


def test_a_stop_by_hand_refuses_who_waits_and_ends_after_the_last_answer() -> None:
    scheduler = asked("always")
    scheduler.stop("a")
    assert scheduler.decide(2) == []
    assert scheduler.states["a"].phase is ModelPhase.DRAINING
    scheduler.leave(1, "a", 3)
    assert acts(scheduler.decide(3)) == [(Act.STOP, "a", 0)]
    scheduler.stopped("a", 4)
    scheduler.arrive(2, "a", 5)
    assert acts(scheduler.decide(5)) == [(Act.START, "a", 0)]


def test_clients_that_go_on_asking_do_not_undo_a_stop_by_hand() -> None:
    scheduler = asked("idle")
    scheduler.stop("a")
    scheduler.decide(2)
    scheduler.arrive(2, "a", 2)
    assert acts(scheduler.decide(2)) == [(Act.REFUSE, "a", 2)]
    scheduler.leave(1, "a", 3)
    assert acts(scheduler.decide(3)) == [(Act.STOP, "a", 0)]
    scheduler.arrive(3, "a", 3)
    assert scheduler.decide(3) == []
    scheduler.stopped("a", 4)
    assert acts(scheduler.decide(4)) == [(Act.START, "a", 0)], "who comes later starts it again"


def test_what_others_began_and_never_answers_is_not_waited_for_without_end() -> None:
    scheduler = scheduler_of("idle", "idle")
    scheduler.observed("a", Sighting.STARTING, 0)
    scheduler.arrive(1, "b", 1)
    assert scheduler.decide(1) == []
    assert scheduler.next_change_s(1) == LONGEST_START_S
    scheduler.observed("a", Sighting.STARTING, LONGEST_START_S - 1)
    assert acts(scheduler.decide(LONGEST_START_S)) == [(Act.STOP, "a", 0)]
    scheduler.stopped("a", LONGEST_START_S)
    assert acts(scheduler.decide(LONGEST_START_S)) == [(Act.START, "b", 0)]
    # A person does not wait for so long.
    scheduler = scheduler_of("idle")
    scheduler.observed("a", Sighting.STARTING, 0)
    scheduler.stop("a")
    assert acts(scheduler.decide(1)) == [(Act.STOP, "a", 0)]


def test_a_server_that_falls_silent_while_it_drains_goes_on_draining() -> None:
    scheduler = serving("idle", "idle")
    scheduler.arrive(1, "a", 1)
    scheduler.arrive(2, "b", 2)
    scheduler.decide(2)
    scheduler.decide(STAY_S)
    for now_s in range(61, 180):
        scheduler.observed("a", Sighting.STARTING, now_s)
        assert scheduler.decide(now_s) == []
    assert acts(scheduler.decide(STAY_S + DRAIN_S)) == [(Act.CUT, "a", 1), (Act.STOP, "a", 0)]


class Meddled:
    """Models that others start, stop and kill at any time, and stops that fail."""

    def __init__(self, chance: random.Random) -> None:
        models = [model(name, chance.choice(["idle", "request"])) for name in NAMES]
        fit = fit_of(models, [chance.randint(1, 10) for _ in NAMES])
        self.scheduler = Scheduler(models, fit, smallest_stay_s=STAY_S, drain_limit_s=DRAIN_S)
        self.chance = chance
        self.now_s = 0.0
        self.seen = dict.fromkeys(NAMES, Sighting.STOPPED)
        self.ends: list[tuple[float, Act, str, int]] = []
        self.answers: dict[int, Act | None] = {}

    def step(self, *, is_meddled: bool) -> None:
        self.now_s += self.chance.choice([0.5, 2, 5])
        for end in [it for it in self.ends if it[0] <= self.now_s]:
            self.ends.remove(end)
            self._ends(*end[1:])
        if is_meddled:
            self._meddle(self.chance.choice(NAMES), self.chance.random())
        for name, seen in self.seen.items():
            self.scheduler.observed(name, seen, self.now_s, "x" * (seen is Sighting.DEAD))
        for order in self.scheduler.decide(self.now_s):
            if order.act in {Act.START, Act.STOP, Act.SEND}:
                took_s = self.chance.randint(1, 200)
                self.ends.append((self.now_s + took_s, order.act, order.model, order.request))
            if order.request:
                assert self.answers[order.request] is (Act.SEND if order.act is Act.CUT else None)
                self.answers[order.request] = order.act

    def _ends(self, act: Act, model: str, request: int) -> None:
        goes_well = self.chance.random() < 0.8
        if act is Act.SEND:
            self.scheduler.leave(request, model, self.now_s)
        elif act is Act.STOP and not goes_well:
            self.scheduler.stop_failed(model)
        elif act is Act.START and goes_well:
            self.seen[model] = Sighting.HEALTHY
            self.scheduler.started(model, 30, self.now_s)
        elif act is Act.START:
            self.seen[model] = Sighting.DEAD
            self.scheduler.start_failed(model, "x", self.now_s)
        else:
            self.seen[model] = Sighting.STOPPED
            self.scheduler.stopped(model, self.now_s)

    def _meddle(self, model: str, dice: float) -> None:
        if dice < 0.1:
            request = len(self.answers) + 1
            self.answers[request] = None
            patience_s = self.chance.choice([math.inf, 600, 30])
            self.scheduler.arrive(request, model, self.now_s, patience_s)
        elif dice < 0.13:
            self.scheduler.stop(model)
        elif dice < 0.15:
            self.scheduler.want(model, self.now_s)
        elif dice < 0.18 and not self.scheduler.states[model].is_ours:
            self.seen[model] = self.chance.choice(list(Sighting))


@given(st.integers(0, 2**32))
@settings(max_examples=8)
def test_no_request_is_lost_whatever_others_do(seed: int) -> None:
    world = Meddled(random.Random(seed))
    for step in range(400):
        world.step(is_meddled=step < 200)
        if step == 200:
            for name, seen in world.seen.items():
                is_stuck = seen is Sighting.STARTING
                world.seen[name] = Sighting.HEALTHY if is_stuck else seen
    steps = 0
    while None in world.answers.values() and (steps := steps + 1) < 3000:
        world.step(is_meddled=False)
    assert None not in world.answers.values(), "a request is never answered"
