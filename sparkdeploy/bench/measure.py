"""A suite under way: each turn is asked, timed, counted and kept."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkdeploy.bench.answers import read_answer
from sparkdeploy.bench.figures import WARM_UP, Measured, cell_of, measure
from sparkdeploy.bench.record import FailureKind, SuiteResult
from sparkdeploy.bench.suites import (
    WARMUPS,
    Ask,
    Dialect,
    Forecast,
    Prompt,
    Sizer,
    asked,
    context_prompt,
    request_body,
)
from sparkdeploy.bench.watch import (
    difference,
    kv_peak,
    machine_watch,
    together,
)
from sparkdeploy.errors import BenchError, SparkdeployError
from sparkdeploy.server.metrics import read_metrics
from sparkdeploy.server.pooling import MEASURE_HINT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from sparkdeploy.bench.record import Cell, Failure, ServerDelta
    from sparkdeploy.bench.streams import Streams
    from sparkdeploy.bench.suites import Condition, Suite, Turn
    from sparkdeploy.bench.watch import BenchWatch, Reading
    from sparkdeploy.server.metrics import Metrics

SETTLE_S = 10.0
SETTLE_POLL_S = 0.02
GONE = "the server no longer answers"
INTERRUPTED = "interrupted"
"""The note of a suite that a person ended."""
NO_ROUTE = "404: Not Found"
"""FastAPI's words for a route that is not there; a model that is not is told in others."""
_GREETING = Prompt("hello", ({"role": "user", "content": "Hello"},), 2)


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    streams: Streams
    model: str
    dialect: Dialect
    exposition: Callable[[], str] | None = None
    """Returns /metrics; None where there are none."""

    def counters(self) -> Metrics | None:
        if self.exposition is None:
            return None
        try:
            return read_metrics(self.exposition())
        except SparkdeployError:
            return None

    def settled(self, before: Metrics, tokens: int) -> Metrics | None:
        """Read until the server has counted what it has answered, a moment later at most."""
        deadline_s = time.perf_counter() + SETTLE_S
        while True:
            after = self.counters()
            counted = after.generated_tokens if after is not None else None
            wanted = (before.generated_tokens or 0) + tokens
            if counted is None or counted >= wanted or time.perf_counter() > deadline_s:
                return after
            time.sleep(SETTLE_POLL_S)

    def body(self, ask: Ask) -> dict[str, Any]:
        return request_body(ask, model=self.model, dialect=self.dialect)


@dataclass(slots=True)
class _Collected:
    rounds: dict[int, list[Measured]] = field(default_factory=dict)
    deltas: list[ServerDelta] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)


def find_dialect(streams: Streams, model: str) -> Dialect:
    words, failure = "", None
    for dialect in Dialect:
        ask = Ask(_GREETING, is_exact=True)
        body = request_body(ask, model=model, dialect=dialect)
        failure = read_answer(streams.round([body])[0]).failure
        if failure is None:
            return dialect
        words = f"{failure.kind}: {failure.message}"
        if failure.kind not in {FailureKind.REFUSED, FailureKind.UNCOUNTED}:
            break
    hint = None
    if failure is not None and failure.kind is FailureKind.UNCOUNTED:
        hint = "it must answer `stream_options: {include_usage: true}`: chunks are not tokens"
    if words.endswith(NO_ROUTE):
        hint = MEASURE_HINT
    raise BenchError(f"the server cannot be measured: {words}", hint=hint)


@dataclass(slots=True)
class Measurement:
    suite: Suite
    server: MeasuredServer
    watch: BenchWatch
    seed: int = field(default_factory=lambda: time.time_ns() % 2**31)
    """Begins the prompts made to measure."""
    _sizer: Sizer = field(default_factory=Sizer)
    _forecast: Forecast = field(default_factory=Forecast)
    _collected: dict[Condition, _Collected] = field(default_factory=dict)
    _began_s: float = field(default_factory=time.perf_counter)

    def run(self, on_progress: Callable[[Turn, float | None, float | None], None]) -> SuiteResult:
        """Take every turn; an interruption, or a server that is gone, ends with what there is.

        `on_progress` hears of each turn, its tok/s and the seconds that are left.
        """
        turns = self.suite.turns
        notes = self.suite.notes
        is_complete = False
        try:
            for index, turn in enumerate(turns):
                measured = self._take(turn)
                failures = [item.sample.failure for item in measured]
                if all(item and item.kind is FailureKind.UNREACHABLE for item in failures):
                    notes = (*notes, GONE)
                    break
                speeds = [s for item in measured if (s := item.sample.decode_tok_s) is not None]
                tok_s = sum(speeds) / len(speeds) if speeds else None
                on_progress(turn, tok_s, self._forecast.remaining_s(turns[index + 1 :]))
            else:
                is_complete = True
        except KeyboardInterrupt:
            notes = (*notes, INTERRUPTED)
        return SuiteResult(
            name=self.suite.name,
            prompts=self.suite.prompts,
            rounds=self.suite.rounds,
            warmups=WARMUPS,
            is_complete=is_complete,
            cells=tuple(self._cells()),
            notes=notes,
        )

    def _take(self, turn: Turn) -> list[Measured]:
        condition = turn.condition
        asks = self._asks(turn)
        before = self.server.counters()
        start_s = time.perf_counter()
        exchanges = self.server.streams.round([self.server.body(ask) for ask in asks])
        end_s = time.perf_counter()
        measured = [
            measure(
                exchange,
                read_answer(exchange),
                prompt=condition.prompt,
                number=turn.round,
                stream=stream,
                began_s=self._began_s,
            )
            for stream, exchange in enumerate(exchanges)
        ]
        self._learn(asks, measured)
        kept = self._collected.setdefault(condition, _Collected())
        kept.rounds[turn.round] = measured
        # Also after a warm-up: what it counts late must not fall into the next round.
        tokens = sum(item.sample.completion_tokens for item in measured)
        after = self.server.settled(before, tokens) if before is not None else None
        if turn.round != WARM_UP:
            kept.readings += self.watch.between(start_s, end_s)
            if before is not None and after is not None:
                kept.deltas.append(difference(before, after))
        return measured

    def _asks(self, turn: Turn) -> list[Ask]:
        condition = turn.condition
        if condition.context_tokens is None:
            by_name = {prompt.name: prompt for prompt in asked(self.suite.name)}
            return [Ask(by_name[condition.prompt])] * condition.concurrency
        words = self._words_for(condition.context_tokens - condition.max_tokens)
        made = [self._made(words, condition.max_tokens) for _ in range(condition.concurrency)]
        return [
            Ask(prompt, is_exact=True, context_tokens=condition.context_tokens, words=words)
            for prompt in made
        ]

    def _made(self, words: int, max_tokens: int) -> Prompt:
        self.seed += 1
        return context_prompt(words, seed=self.seed, max_tokens=max_tokens)

    def _words_for(self, prompt_tokens: int) -> int:
        while (words := self._sizer.probe_for(prompt_tokens)) is not None:
            failure = self._probe(words, prompt_tokens)
            if failure is None:
                continue
            if not self._sizer.can_foretell:
                raise BenchError(f"a prompt of {words} words failed: {failure.message}")
            # What the server does not take shorter it does not take: the cell itself will say so.
            break
        return self._sizer.words_for(prompt_tokens)

    def _probe(self, words: int, wanted_tokens: int) -> Failure | None:
        ask = Ask(self._made(words, 1), is_exact=True, context_tokens=wanted_tokens)
        answer = read_answer(self.server.streams.round([self.server.body(ask)])[0])
        if answer.failure is None:
            self._sizer.learn(words, answer.prompt_tokens)
        return answer.failure

    def _learn(self, asks: Sequence[Ask], measured: Sequence[Measured]) -> None:
        counted = [item.sample for item in measured if item.is_counted]
        if not counted:
            return
        self._forecast.learn(
            prompt_tokens=sum(sample.prompt_tokens for sample in counted),
            prompt_s=max(sample.ttft_s or 0.0 for sample in counted),
            tokens=max(sample.completion_tokens for sample in counted),
            decode_s=max(sample.duration_s - (sample.ttft_s or 0.0) for sample in counted),
        )
        for ask, item in zip(asks, measured, strict=True):
            if ask.words is not None and item.is_counted:
                self._sizer.learn(ask.words, item.sample.prompt_tokens)

    def _cells(self) -> Iterator[Cell]:
        for condition, kept in self._collected.items():
            if any(number != WARM_UP for number in kept.rounds):
                yield cell_of(
                    condition,
                    kept.rounds,
                    server=together(kept.deltas, kv_usage_peak=kv_peak(kept.readings)),
                    machine=machine_watch(kept.readings),
                )


def outcome_of(result: SuiteResult) -> str:
    """Return how a suite's step ended: done, interrupted by a person, or failed."""
    if result.is_complete:
        return "done"
    return INTERRUPTED if INTERRUPTED in result.notes else "failed"
