"""The scheduler at work: requests that wait for their turn, and threads that start and stop."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sparkdeploy.errors import SparkdeployError
from sparkdeploy.gateway.deployments import StackLook, Upstream
from sparkdeploy.gateway.fit import StackFit
from sparkdeploy.gateway.scheduler import Act, Instruction, ModelPhase, Scheduler
from sparkdeploy.gateway.stack import ModelEntry, Stack
from sparkdeploy.node.node import in_background
from sparkdeploy.recipe.answers import Answers
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.safe_text import visible_line
from sparkdeploy.units import format_seconds

LOOK_EVERY_S = 2.0
WATCHED_S = 10.0
"""So long after somebody has looked at the page its figures are read on."""
Result = TypeVar("Result")


class Deployments(Protocol):
    def look(self, *, with_figures: bool = False) -> StackLook: ...

    def start(self, model: ModelEntry) -> Upstream: ...

    def stop(self, model: ModelEntry) -> None: ...


class NotServedError(Exception):
    """A request that is not served; the message is for its client."""

    def __init__(self, cause: str, retry_after_s: float | None) -> None:
        super().__init__(cause)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class RequestTurn:
    """A request from its arrival to its end."""

    request: int
    model: str
    upstream: asyncio.Future[Upstream]
    """Where to send it; NotServedError where it is not served."""
    cut: asyncio.Future[str]
    """Why it is ended before its answer was whole."""


class Turns:
    def __init__(self, stack: Stack, fit: StackFit, deployments: Deployments) -> None:
        self.scheduler = Scheduler(
            stack.models,
            fit,
            smallest_stay_s=stack.smallest_stay_s,
            measured_s={it.name: it.start_s for it in fit.models if it.is_measured and it.start_s},
        )
        self.looked: StackLook | None = None
        self.problem = ""
        """Why nothing is known of the deployments."""
        self.watched_s = -WATCHED_S
        self._stack = stack
        self._deployments = deployments
        self._models = {it.name: it for it in stack.models}
        self._upstreams: dict[str, Upstream] = {}
        self._changed_s: dict[str, float] = {}
        self._turns: dict[int, RequestTurn] = {}
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking = asyncio.Lock()
        self._looked_s = -1.0
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look at the deployments again and again inside the block."""
        await self.look_again()
        for model in self._stack.models:
            if model.keep == "always":
                self.scheduler.want(model.name, time.monotonic())
        self._decide()
        looking = asyncio.create_task(self._look_on())
        try:
            yield
        finally:
            looking.cancel()
            if self._timer is not None:
                self._timer.cancel()
            # What has begun goes on, or is recovered by whoever starts it next.
            for task in self._tasks:
                task.cancel()

    @contextlib.contextmanager
    def turn(self, model: str, patience_s: float) -> Iterator[RequestTurn]:
        """Queue a request for the block, whose end is the request's."""
        loop = asyncio.get_running_loop()
        turn = RequestTurn(next(self._numbers), model, loop.create_future(), loop.create_future())
        self._turns[turn.request] = turn
        self.scheduler.arrive(turn.request, model, time.monotonic(), patience_s)
        self._decide()
        try:
            yield turn
        finally:
            del self._turns[turn.request]
            turn.upstream.cancel()
            turn.cut.cancel()
            if turn.upstream.done() and not turn.upstream.cancelled():
                turn.upstream.exception()  # whoever left did not ask for it
            self.scheduler.leave(turn.request, model, time.monotonic())
            self._decide()

    async def look_again(self) -> None:
        """Return after a look that began after this call: a server was not there."""
        asked_s = time.monotonic()
        async with self._looking:
            if self._looked_s < asked_s:
                await self._look()
        self._decide()

    def answers(self, model: str) -> Answers | None:
        look = self.looked.models.get(model) if self.looked is not None else None
        return look.answers if look is not None else None

    def start(self, model: str) -> None:
        self.scheduler.want(model, time.monotonic())
        self._decide()

    def stop(self, model: str) -> None:
        self.scheduler.stop(model)
        self._decide()

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look_again()

    async def _look(self) -> None:
        began_s = self._looked_s = time.monotonic()
        with_figures = began_s - self.watched_s < WATCHED_S
        try:
            looked = await _in_thread(lambda: self._deployments.look(with_figures=with_figures))
        except Exception as error:  # noqa: BLE001 - the next look may go well
            self.problem = _in_words(error)
            return
        self.looked, self.problem = looked, ""
        for name, look in looked.models.items():
            # One that was started or stopped meanwhile has been looked at too early.
            if self._changed_s.get(name, began_s) > began_s:
                continue
            if look.upstream is not None:
                self._upstreams[name] = look.upstream
            before = self.scheduler.states[name].phase
            self.scheduler.observed(name, look.seen, time.monotonic(), look.cause)
            self._tell_change(name, before, look.cause)
            self._keep_always(name)

    def _keep_always(self, name: str) -> None:
        """Start what is always there and died; what somebody stopped stays so."""
        state = self.scheduler.states[name]
        gone = state.phase is ModelPhase.STOPPED and state.cause
        if state.model.keep == "always" and (gone or state.phase is ModelPhase.FAILED):
            self.scheduler.want(name, time.monotonic())

    def _tell_change(self, name: str, before: ModelPhase, cause: str = "") -> None:
        after = self.scheduler.states[name].phase
        if after is not before:
            why = f": {visible_line(cause)}" if cause and after is not ModelPhase.READY else ""
            console.answer(f"{name} is {after.value}{why}")

    def _decide(self) -> None:
        now_s = time.monotonic()
        for order in self.scheduler.decide(now_s):
            self._carry_out(order)
        if self._timer is not None:
            self._timer.cancel()
        next_s = self.scheduler.next_change_s(now_s)
        if next_s != float("inf"):
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(next_s - now_s + 0.001, self._decide)

    def _carry_out(self, order: Instruction) -> None:
        turn = self._turns.get(order.request)
        if order.act is Act.START:
            self._begin(self._start(order.model))
        elif order.act is Act.STOP:
            self._begin(self._stop(order.model))
        elif turn is None:
            return
        elif order.act is Act.CUT:
            turn.cut.set_result(order.cause)
        elif not turn.upstream.done():
            if order.act is Act.SEND:
                turn.upstream.set_result(self._upstreams[order.model])
            else:
                turn.upstream.set_exception(NotServedError(order.cause, order.retry_after_s))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, name: str) -> None:
        began_s = time.monotonic()
        console.answer(f"{name} is starting")
        try:
            upstream = await _in_thread(lambda: self._deployments.start(self._models[name]))
        except Exception as error:  # noqa: BLE001 - a mistake of ours is a failed start, too
            cause = _in_words(error)
            self.scheduler.start_failed(name, cause, time.monotonic())
            console.answer(f"{name} did not start: {visible_line(cause)}")
        else:
            self._upstreams[name] = upstream
            took_s = time.monotonic() - began_s
            self.scheduler.started(name, took_s, time.monotonic())
            console.answer(f"{name} is ready after {format_seconds(took_s)}")
        self._changed_s[name] = time.monotonic()
        self._decide()

    async def _stop(self, name: str) -> None:
        try:
            await _in_thread(lambda: self._deployments.stop(self._models[name]))
        except Exception as error:  # noqa: BLE001 - as above
            self.scheduler.stop_failed(name)  # what it is now is what the next look sees
            console.answer(f"{name} could not be stopped: {visible_line(_in_words(error))}")
        else:
            self.scheduler.stopped(name, time.monotonic())
            console.answer(f"{name} is stopped")
        self._changed_s[name] = time.monotonic()
        self._decide()


def _in_words(error: Exception) -> str:
    if isinstance(error, SparkdeployError):
        return f"{error.message} (fix: {error.hint})" if error.hint else error.message
    return f"unexpected {type(error).__name__}: {error}"


async def _in_thread(work: Callable[[], Result]) -> Result:
    return await asyncio.wrap_future(in_background(work))
