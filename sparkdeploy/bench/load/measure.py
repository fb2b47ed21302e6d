"""A load under way: each rate is asked, timed, judged and kept."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sparkdeploy.bench.answers import read_answer
from sparkdeploy.bench.figures import WARM_UP, Measured, measure
from sparkdeploy.bench.load.figures import LATE_S, STEADY, load_cell, load_result
from sparkdeploy.bench.load.plan import salts
from sparkdeploy.bench.load.search import Try
from sparkdeploy.bench.measure import GONE
from sparkdeploy.bench.record import FailureKind, SuiteResult
from sparkdeploy.bench.suites import SuiteName
from sparkdeploy.bench.watch import Counters, difference, kv_peak, machine_watch, together
from sparkdeploy.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.bench.load.arrivals import Schedule
    from sparkdeploy.bench.load.plan import LoadPlan
    from sparkdeploy.bench.measure import MeasuredServer
    from sparkdeploy.bench.record import Cell, ServerDelta
    from sparkdeploy.bench.streams import Come
    from sparkdeploy.bench.suites import Ask
    from sparkdeploy.bench.watch import BenchWatch


@dataclass(slots=True)
class LoadMeasurement:
    plan: LoadPlan
    server: MeasuredServer
    watch: BenchWatch
    salt_seed: int = field(default_factory=time.time_ns)
    """Begins what no prefix cache may know; another one for each run."""
    _cells: list[Cell] = field(default_factory=list)
    _began_s: float | None = None

    def run(self, on_progress: Callable[[float, Cell | None], None]) -> SuiteResult:
        """Take rate after rate; an interruption, or a server that is gone, ends with what there is.

        `on_progress` hears of each rate before it is asked, and of its cell when it was. Raises
        BenchError when the server does not take the first chain, which counts nowhere.
        """
        self._require_answer()
        notes: tuple[str, ...] = ()
        is_complete = False
        try:
            while (rate_per_s := self._next_rate()) is not None:
                on_progress(rate_per_s, None)
                self._cells.append(self._take(rate_per_s))
                on_progress(rate_per_s, self._cells[-1])
                if _is_gone(self._cells[-1]):
                    notes = (GONE,)
                    break
            else:
                is_complete = True
        except KeyboardInterrupt:
            notes = ("interrupted",)
        return self._result(is_complete=is_complete, notes=(*notes, *self._lateness()))

    def _require_answer(self) -> None:
        (chain,) = self._chains(1)
        for ask in chain:
            failure = read_answer(self.server.streams.round([self._body(ask)])[0]).failure
            if failure is not None:
                raise BenchError(
                    f"the server does not take {ask.prompt.name} of this load: {failure.kind}: "
                    f"{failure.message}"
                )

    def _next_rate(self) -> float | None:
        plan = self.plan
        if plan.search is not None:
            return plan.search.next_rate(self._tries())
        return next(iter(plan.rates[len(self._cells) :]), None)

    def _tries(self) -> list[Try]:
        loads = [cell.load for cell in self._cells if cell.load is not None]
        return [Try(load.rate_per_s, load.held, load.requests) for load in loads]

    def _take(self, rate_per_s: float) -> Cell:
        came = self.plan.coming.at(rate_per_s)
        chains = self._chains(len(came.moments_s))
        before = self.server.counters()
        start_s = time.perf_counter()
        come = self.server.streams.at_moments(
            [[self._body(ask) for ask in chain] for chain in chains], came.moments_s
        )
        readings = self.watch.between(start_s, time.perf_counter())
        measured = self._measured(chains, come, came)
        deltas = list(self._delta(before, measured))
        return load_cell(
            self.plan,
            load_result(self.plan, rate_per_s, came, come.began_s, measured),
            measured,
            server=together(deltas, kv_usage_peak=kv_peak(readings)),
            machine=machine_watch(readings),
        )

    def _chains(self, count: int) -> list[tuple[Ask, ...]]:
        self.salt_seed += 1
        drawn = salts(count, seed=self.salt_seed)
        return [self.plan.texts.chain(index, salt) for index, salt in enumerate(drawn)]

    def _body(self, ask: Ask) -> dict[str, object]:
        return self.server.body(ask) | dict(self.plan.body)

    def _measured(
        self, chains: Sequence[Sequence[Ask]], come: Come, came: Schedule
    ) -> list[Measured]:
        if self._began_s is None:
            self._began_s = come.began_s
        measured = []
        for index, (chain, exchanges) in enumerate(zip(chains, come.exchanges, strict=True)):
            # Turns that were not sent, after a failure, are not there.
            for turn, (ask, exchange) in enumerate(zip(chain, exchanges, strict=False)):
                item = measure(
                    exchange,
                    read_answer(exchange),
                    prompt=ask.prompt.name,
                    number=STEADY if came.is_steady(index) else WARM_UP,
                    stream=index,
                    began_s=self._began_s,
                )
                due_s = come.began_s + came.moments_s[index]
                late_s = max(exchange.sent_s - exchange.connect_s - due_s, 0.0) if not turn else 0.0
                measured.append(replace(item, sample=replace(item.sample, late_s=late_s)))
        return measured

    def _delta(
        self, before: Counters | None, measured: Sequence[Measured]
    ) -> Iterator[ServerDelta]:
        if before is None:
            return
        tokens = sum(item.sample.completion_tokens for item in measured)
        after = self.server.settled(before, tokens)
        if after is not None:
            yield difference(before, after)

    def _lateness(self) -> Iterator[str]:
        for cell in self._cells:
            load = cell.load
            if load is not None and load.late_requests:
                yield (
                    f"at {load.rate_per_s:.4g}/s the client itself was late: {load.late_requests} "
                    f"of {len(cell.samples)} requests by more than {LATE_S * 1000:g} ms, "
                    f"{load.latest_s:.3f} s at most; this machine is too busy for that rate"
                )

    def _result(self, *, is_complete: bool, notes: tuple[str, ...]) -> SuiteResult:
        plan = self.plan
        return SuiteResult(
            name=SuiteName.LOAD,
            prompts=plan.hash,
            rounds=1,
            warmups=0,
            temperature=plan.temperature,
            is_complete=is_complete,
            cells=tuple(sorted(self._cells, key=_rate_of)),
            notes=notes,
            asking=plan.texts.asking,
            body=plan.body,
            headers=tuple(plan.headers),
            sustained=plan.search.found(self._tries()) if plan.search and self._cells else None,
        )


def _rate_of(cell: Cell) -> float:
    return cell.load.rate_per_s if cell.load is not None else 0.0


def _is_gone(cell: Cell) -> bool:
    failures = [sample.failure for sample in cell.samples]
    return all(item and item.kind is FailureKind.UNREACHABLE for item in failures)
