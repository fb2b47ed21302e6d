"""A load under way: each rate is asked, timed, judged and kept."""

import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from sparkdeploy.bench.answers import Exchange
from sparkdeploy.bench.figures import WARM_UP, Measured, latency, measure
from sparkdeploy.bench.load.plan import LoadPlan, Schedule
from sparkdeploy.bench.load.record import Asking, LoadResult, TurnResult
from sparkdeploy.bench.measure import Collected, MeasuredServer, completion
from sparkdeploy.bench.record import Cell, RequestSample, SuiteResult
from sparkdeploy.bench.suites import Condition, Prompt, SuiteName
from sparkdeploy.bench.tables import sustained_text
from sparkdeploy.bench.watch import BenchWatch
from sparkdeploy.errors import BenchError
from sparkdeploy.units import format_seconds

LATE_S = 0.02
STEADY = 1
MOST_FILES = 65536


def _allow_connections() -> None:
    """Let this process open as many connections as it may: a shell's 1024 files are soon waiting.

    A request without a file to connect by would count as the server's failure.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(slots=True)
class LoadMeasurement:
    plan: LoadPlan
    server: MeasuredServer
    watch: BenchWatch
    salt_seed: int = field(default_factory=time.time_ns)
    """Begins what no prefix cache may know; another one for each run."""
    _cells: list[Cell] = field(default_factory=list)
    _began_s: float | None = None

    def run(self, say: Callable[[str], None]) -> SuiteResult:
        """Take rate after rate and say how far it is; see `completion` for what ends it early.

        Raises BenchError when the server does not take the first chain, which counts nowhere.
        """
        _allow_connections()
        self._require_answer()
        is_complete, why = completion(self._steps(say))
        plan = self.plan
        sustained = plan.search.found(self._tries()) if plan.search and self._cells else None
        if sustained is not None:
            say(sustained_text(sustained))
        return SuiteResult(
            name=SuiteName.LOAD,
            prompts=plan.hash,
            rounds=1,
            warmups=0,
            is_complete=is_complete,
            cells=tuple(sorted(self._cells, key=lambda cell: cell.load.rate_per_s)),  # type: ignore[union-attr]  # each has one
            notes=(*why, *self._lateness()),
            asking=plan.texts.asking,
            body=plan.texts.body,
            sustained=sustained,
        )

    def _steps(self, say: Callable[[str], None]) -> Iterator[Sequence[RequestSample]]:
        while (rate_per_s := self._next_rate()) is not None:
            took = format_seconds(self.plan.arrivals.at(rate_per_s).moments_s[-1])
            say(f"{rate_per_s:.4g} requests a second for {took}, and until all are answered")
            cell, load = self._take(rate_per_s)
            self._cells.append(cell)
            held = f", {load.held} of {load.requests} held the limits" if self.plan.limits else ""
            failed = f", {load.failures} failed" if load.failures else ""
            say(f"{rate_per_s:.4g}/s: {load.completed_per_s:.3f}/s done{held}{failed}")
            yield cell.samples

    def _require_answer(self) -> None:
        (chain,) = self._chains(1)
        for prompt in chain:
            failure = self.server.answer(prompt, **self.plan.texts.body).failure
            if failure is not None:
                raise BenchError(
                    f"the server does not take {prompt.name} of this load: {failure.kind}: "
                    f"{failure.message}"
                )

    def _next_rate(self) -> float | None:
        plan = self.plan
        if plan.search is not None:
            return plan.search.next_rate(self._tries())
        return next(iter(plan.rates[len(self._cells) :]), None)

    def _tries(self) -> list[LoadResult]:
        return [cell.load for cell in self._cells if cell.load is not None]

    def _take(self, rate_per_s: float) -> tuple[Cell, LoadResult]:
        plan, schedule = self.plan, self.plan.arrivals.at(rate_per_s)
        chains = self._chains(len(schedule.moments_s))
        before = self.server.counters()
        start_s = time.perf_counter()
        bodies = [
            [self.server.body(it) | dict(plan.texts.body) for it in chain] for chain in chains
        ]
        began_s, exchanges = self.server.streams.at_moments(bodies, schedule.moments_s)
        kept = Collected(readings=[*self.watch.between(start_s, time.perf_counter())])
        measured = self._measured(chains, exchanges, schedule, began_s)
        for item in measured:
            kept.rounds.setdefault(item.sample.round, []).append(item)
        if before is not None:
            kept.deltas += self.server.counted_since(before, measured)
        largest = max(prompt.max_tokens for prompt in plan.texts.prompts)
        cell = kept.cell(Condition(plan.texts.name, largest, concurrency=0))
        load = load_result(plan, rate_per_s, schedule, began_s, measured)
        return replace(cell, load=load), load

    def _chains(self, count: int) -> list[tuple[Prompt, ...]]:
        self.salt_seed += 1
        return self.plan.texts.chains(count, self.salt_seed)

    def _measured(
        self,
        chains: Sequence[Sequence[Prompt]],
        exchanged: Sequence[Sequence[Exchange]],
        schedule: Schedule,
        began_s: float,
    ) -> list[Measured]:
        if self._began_s is None:
            self._began_s = began_s
        measured = []
        for index, (chain, exchanges) in enumerate(zip(chains, exchanged, strict=True)):
            # Turns that were not sent, after a failure, are not there.
            for turn, (prompt, exchange) in enumerate(zip(chain, exchanges, strict=False)):
                item = measure(
                    exchange,
                    prompt=prompt.name,
                    number=STEADY if schedule.is_steady(index) else WARM_UP,
                    stream=index,
                    began_s=self._began_s,
                )
                due_s = began_s + schedule.moments_s[index]
                late_s = max(exchange.sent_s - exchange.connect_s - due_s, 0.0) if not turn else 0.0
                measured.append(replace(item, sample=replace(item.sample, late_s=late_s)))
        return measured

    def _lateness(self) -> Iterator[str]:
        for cell in self._cells:
            load = cell.load
            if load is not None and load.late_requests:
                yield (
                    f"at {load.rate_per_s:.4g}/s the client itself was late: {load.late_requests} "
                    f"of {len(cell.samples)} requests by more than {LATE_S * 1000:g} ms, "
                    f"{load.latest_s:.3f} s at most; this machine is too busy for that rate"
                )


def load_result(
    plan: LoadPlan,
    rate_per_s: float,
    schedule: Schedule,
    began_s: float,
    measured: Sequence[Measured],
) -> LoadResult:
    """Return the steady state of requests since `began_s` of the client's clock."""
    steady = [item for item in measured if item.sample.round != WARM_UP]
    counted = [item for item in steady if item.is_counted]
    steady_s = began_s + schedule.steady_s
    window_s = max((_ended_s(item) for item in steady), default=steady_s) - steady_s
    held = sum(plan.limits.holds(item.sample) for item in steady) if plan.limits else 0
    late = [item.sample.late_s for item in measured]
    return LoadResult(
        arrivals=plan.arrivals.law.value,
        rate_per_s=rate_per_s,
        seed=plan.arrivals.seed,
        ramp_s=plan.arrivals.ramp_s,
        window_s=window_s,
        requests=len(steady),
        failures=len(steady) - len(counted),
        completed_per_s=_rate(len(counted), window_s),
        completion_tok_s=_rate(sum(item.sample.completion_tokens for item in counted), window_s),
        prompt_tok_s=_rate(sum(item.sample.prompt_tokens for item in counted), window_s),
        most_in_flight=most_at_once((item.sent_s, _ended_s(item)) for item in measured),
        limits_s=dict(plan.limits.seconds) if plan.limits else {},
        held=held,
        goodput_per_s=_rate(held, window_s) if plan.limits else None,
        late_requests=sum(late_s > LATE_S for late_s in late),
        latest_s=max(late, default=0.0),
        turns=tuple(_turns(plan, steady)),
        unsent=len(schedule.moments_s) * plan.texts.turns - len(measured),
    )


def _turns(plan: LoadPlan, steady: Sequence[Measured]) -> Iterator[TurnResult]:
    if plan.texts.asking is not Asking.CONVERSATIONS:
        return
    for turn, prompt in enumerate(plan.texts.prompts, 1):
        own = [item for item in steady if item.sample.prompt == prompt.name]
        counted = [item.sample for item in own if item.is_counted]
        cached = [it.cached_tokens for it in counted if it.cached_tokens is not None]
        waits = latency(own)
        yield TurnResult(
            turn=turn,
            requests=len(own),
            failures=len(own) - len(counted),
            prompt_tokens=fmean([it.prompt_tokens for it in counted]) if counted else None,
            cached_tokens=fmean(cached) if cached and len(cached) == len(counted) else None,
            ttft_s=waits.ttft_s,
            tpot_s=waits.tpot_s,
        )


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many spans (start, end) overlap at most; one that ends where another starts does
    not."""
    changes = [change for start, end in spans for change in ((start, 1), (end, -1))]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _ended_s(item: Measured) -> float:
    return item.moments_s[-1] if item.moments_s else item.sent_s + item.sample.duration_s


def _rate(amount: float, window_s: float) -> float:
    return amount / window_s if window_s > 0 else 0.0
