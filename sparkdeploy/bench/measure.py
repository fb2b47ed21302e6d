"""A suite under way: each turn is asked, timed, counted and kept."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sparkdeploy.bench.answers import CountedAnswer, read_answer
from sparkdeploy.bench.endpoint import measure_hint
from sparkdeploy.bench.figures import (
    WARM_UP,
    Measured,
    latency,
    measure,
    round_result,
    summaries,
)
from sparkdeploy.bench.record import (
    Cell,
    Failure,
    FailureKind,
    ServerDelta,
    SuiteResult,
)
from sparkdeploy.bench.streams import Streams
from sparkdeploy.bench.suites import (
    WARMUPS,
    Condition,
    Prompt,
    Suite,
    SuiteName,
    TokenEstimator,
    Turn,
    UsageSupport,
    asked,
    context_prompt,
    conversation,
    request_body,
)
from sparkdeploy.bench.watch import BenchWatch, Reading, difference, machine_watch, together
from sparkdeploy.errors import BenchError, SparkdeployError
from sparkdeploy.recipe.answers import Task
from sparkdeploy.server.metrics import Metrics, read_metrics
from sparkdeploy.units import format_seconds

MOST_TOKENS_A_WORD = 8
SETTLE_S = 10.0
SETTLE_POLL_S = 0.02
GONE = "the server no longer answers"
INTERRUPTED = "interrupted"
NO_ROUTE = "404: Not Found"
"""FastAPI's answer for a route that is not there; a model that is not has another."""
_GREETING = Prompt("hello", ({"role": "user", "content": "Hello"},), 2, is_exact=True)


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    streams: Streams
    model: str
    support: UsageSupport
    exposition: Callable[[], str] | None = None
    tokens_of: Callable[[Sequence[Mapping[str, Any]]], int | None] = lambda _messages: None
    """The tokens of a conversation, where the server counts them without an answer."""

    def counters(self) -> Metrics | None:
        if self.exposition is None:
            return None
        try:
            return read_metrics(self.exposition())
        except SparkdeployError:
            return None

    def counted_since(self, before: Metrics, measured: Iterable[Measured]) -> list[ServerDelta]:
        """Wait until the server has counted what it has answered; return the difference, if any."""
        tokens = sum(item.sample.completion_tokens for item in measured)
        wanted = (before.generated_tokens or 0) + tokens
        deadline_s = time.perf_counter() + SETTLE_S
        while True:
            after = self.counters()
            counted = after.generated_tokens if after is not None else None
            if counted is None or counted >= wanted or time.perf_counter() > deadline_s:
                return [difference(before, after)] if after is not None else []
            time.sleep(SETTLE_POLL_S)

    def body(self, prompt: Prompt) -> dict[str, Any]:
        return request_body(prompt, model=self.model, support=self.support)

    def answer(self, prompt: Prompt) -> CountedAnswer:
        """Ask one prompt that counts nowhere."""
        return read_answer(self.streams.round([self.body(prompt)])[0])


@dataclass(slots=True)
class Collected:
    """What a condition has brought by now, by round."""

    rounds: dict[int, list[Measured]] = field(default_factory=dict)
    deltas: list[ServerDelta] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    def cell(self, condition: Condition) -> Cell:
        """Return all that was measured; a warm-up counts in no figure."""
        kept = sorted(self.rounds.items())
        counted = [(number, items) for number, items in kept if number != WARM_UP]
        results = tuple(round_result(number, items) for number, items in counted)
        return Cell(
            **asdict(condition),
            samples=tuple(item.sample for _, items in kept for item in items),
            rounds=results,
            latency=latency(item for _, items in counted for item in items),
            statistics=summaries(results),
            server=together(self.deltas, self.readings),
            machine=machine_watch(self.readings),
        )


def usage_support(streams: Streams, model: str) -> UsageSupport:
    """Return the most that the server counts when asked; BenchError where it counts nothing."""
    failures: list[Failure] = []
    for support in UsageSupport:
        failure = MeasuredServer(streams, model, support).answer(_GREETING).failure
        if failure is None:
            return support
        failures.append(failure)
        if failure.kind not in {FailureKind.REFUSED, FailureKind.UNCOUNTED}:
            break
    failure = failures[-1]
    hint = None
    if failure.kind is FailureKind.UNCOUNTED:
        hint = "it must answer `stream_options: {include_usage: true}`: chunks are not tokens"
    if failure.message.endswith(NO_ROUTE):
        hint = measure_hint(Task.EMBEDDINGS)
    raise BenchError(f"the server cannot be measured: {failure.kind}: {failure.message}", hint=hint)


@dataclass(slots=True)
class Measurement:
    suite: Suite
    server: MeasuredServer
    watch: BenchWatch
    seed: int = field(default_factory=lambda: time.time_ns() % 2**31)
    """Begins the prompts made to measure."""
    _estimator: TokenEstimator = field(init=False)
    _collected: dict[Condition, Collected] = field(default_factory=dict)
    _began_s: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self._estimator = TokenEstimator(self._tokens_of, MOST_TOKENS_A_WORD)

    def run(self, say: Callable[[str], None]) -> SuiteResult:
        """Take every turn and say how far it is; Ctrl-C and a server that is gone end it early."""
        why: tuple[str, ...] = ()
        try:
            if not self._take_all(say):
                why = (GONE,)
        except KeyboardInterrupt:
            why = (INTERRUPTED,)
        return SuiteResult(
            name=self.suite.name,
            prompts=self.suite.prompts,
            rounds=self.suite.rounds,
            warmups=WARMUPS,
            is_complete=not why,
            cells=tuple(
                kept.cell(condition)
                for condition, kept in self._collected.items()
                if kept.rounds.keys() - {WARM_UP}
            ),
            notes=(*self.suite.notes, *why),
        )

    def _take_all(self, say: Callable[[str], None]) -> bool:
        """Return whether the server was there all the time."""
        turns = self.suite.turns
        for index, turn in enumerate(turns):
            samples = [item.sample for item in self._take(turn)]
            failures = [sample.failure for sample in samples]
            if all(it and it.kind is FailureKind.UNREACHABLE for it in failures):
                return False
            condition, where = turn.condition, turn.condition.prompt
            if condition.context_tokens is not None:
                where = f"{condition.concurrency} streams, context {condition.context_tokens}"
            which = f"round {turn.round} of {self.suite.rounds}" if turn.round else "warm-up"
            speeds = [it.decode_tok_s for it in samples if it.decode_tok_s is not None]
            speed = f", {sum(speeds) / len(speeds):.1f} tok/s" if speeds else ""
            left_s = (time.perf_counter() - self._began_s) * self.suite.left_share(index)
            say(f"{where}, {which}{speed}, about {format_seconds(left_s)} left")
        return True

    def _take(self, turn: Turn) -> list[Measured]:
        prompts = self._prompts(turn)
        before = self.server.counters()
        start_s = time.perf_counter()
        exchanges = self.server.streams.round([self.server.body(prompt) for prompt in prompts])
        end_s = time.perf_counter()
        measured = [
            measure(
                exchange,
                prompt=turn.condition.prompt,
                number=turn.round,
                stream=stream,
                began_s=self._began_s,
            )
            for stream, exchange in enumerate(exchanges)
        ]
        kept = self._collected.setdefault(turn.condition, Collected())
        kept.rounds[turn.round] = measured
        # Also after a warm-up: what it counts late must not fall into the next round.
        deltas = self.server.counted_since(before, measured) if before is not None else []
        if turn.round != WARM_UP:
            kept.readings += self.watch.between(start_s, end_s)
            kept.deltas += deltas
        return measured

    def _prompts(self, turn: Turn) -> list[Prompt]:
        """Return a prompt for each stream; of an agent's conversations each round has new ones."""
        condition = turn.condition
        tokens, count = condition.context_tokens, condition.concurrency
        if self.suite.name is SuiteName.AGENTS:
            tickets = (f"{self.seed:x}-{count}-{turn.round}-{stream}" for stream in range(count))
            turns = (it for ticket in tickets for it in conversation(ticket))
            return [it for it in turns if it.name == condition.prompt]
        if tokens is None:
            return [it for it in asked(self.suite.name) if it.name == condition.prompt] * count
        words = self._estimator.pieces_for(tokens - condition.max_tokens)
        return [self._made(words, condition.max_tokens, tokens) for _ in range(count)]

    def _made(self, words: int, max_tokens: int, context_tokens: int | None = None) -> Prompt:
        self.seed += 1
        return context_prompt(
            words, seed=self.seed, max_tokens=max_tokens, context_tokens=context_tokens
        )

    def _tokens_of(self, words: int) -> int:
        prompt = self._made(words, 1)
        tokens = self.server.tokens_of(prompt.messages)
        if tokens is not None:
            return tokens
        answer = self.server.answer(prompt)
        if answer.failure is not None:
            raise BenchError(f"a prompt of {words} words failed: {answer.failure.message}")
        return answer.prompt_tokens


def outcome_of(result: SuiteResult) -> str:
    if result.is_complete:
        return "done"
    return INTERRUPTED if INTERRUPTED in result.notes else "failed"
