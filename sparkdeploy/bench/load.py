"""`bench load`: which rates are tried within which limits; `vllm bench serve` sends the requests.

The tool runs in the deployment's container and asks the shipped prompts, none of which a prefix
cache can know.
"""

import json
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkdeploy.bench.endpoint import Endpoint
from sparkdeploy.bench.figures import summaries
from sparkdeploy.bench.measure import GONE, INTERRUPTED, MeasuredServer
from sparkdeploy.bench.record import (
    Cell,
    Latency,
    LoadResult,
    Quantiles,
    RoundResult,
    SuiteResult,
    SustainedRate,
    ToolResult,
)
from sparkdeploy.bench.suites import SuiteName, asked, digest
from sparkdeploy.bench.tables import sustained_text
from sparkdeploy.bench.tools import vllm_bench
from sparkdeploy.bench.watch import BenchWatch, machine_watch, together
from sparkdeploy.errors import SparkdeployError, UsageError
from sparkdeploy.node.host import DockerHost
from sparkdeploy.units import format_seconds

AUTO = "auto"
MIX = "mix"
LIMITED = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2el"}
"""What may be limited, and what `vllm bench serve` calls it."""
MOST_TOKENS = 1024
"""Of an answer: the tool asks for at most 2,048 with the prompt."""
MOST_PER_S = 100.0
_PROMPTS = (*asked("five"), *asked("decode"))
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0}
FIRST_PER_S = 1.0
LEAST_PER_S = 1 / 64
MOST_TRIES = 12
CLOSE = 1.1
"""A failing rate this close above a holding one ends the search."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is tried: `rates` alone without `wanted_share`, else a search for the highest rate.

    A search tries the rates as given, then bisects between the last that held and the next; without
    rates it doubles them while they hold and halves them while they do not.
    """

    rates: tuple[float, ...]
    """Ascending."""
    limits_s: Mapping[str, float] = field(default_factory=dict)
    wanted_share: float | None = None
    duration_s: float = 60.0
    requests: int | None = None
    """At each rate; None for as many as come in `duration_s`."""

    def count(self, rate_per_s: float) -> int:
        return self.requests or max(round(rate_per_s * self.duration_s), 1)

    def next_rate(self, tries: Sequence[LoadResult]) -> float | None:
        """Return the next rate to try; None when enough is known."""
        tried = {item.rate_per_s for item in tries}
        if left := [rate for rate in self.rates if rate not in tried]:
            return left[0]
        if self.wanted_share is None:
            return None
        if not tries:
            return FIRST_PER_S
        if len(tries) >= MOST_TRIES + len(self.rates):
            return None
        holding, failing = self._bounds(tries)
        if holding is not None and failing is not None:
            return (holding * failing) ** 0.5 if failing > holding * CLOSE else None
        wider = failing / 2 if failing is not None else (holding or 0.0) * 2
        return wider if not self.rates and LEAST_PER_S <= wider <= MOST_PER_S else None

    def sustained(self, tries: Sequence[LoadResult]) -> SustainedRate | None:
        """Return the highest rate below the first that failed; None where none was searched."""
        if self.wanted_share is None or not tries:
            return None
        holding, failing = self._bounds(tries)
        best = next((item for item in tries if item.rate_per_s == holding), None)
        held, requests = (best.held, best.requests) if best else (0, 0)
        return SustainedRate(holding, held, requests, self.wanted_share, failing)

    def _bounds(self, tries: Sequence[LoadResult]) -> tuple[float | None, float | None]:
        """A rate that holds above one that failed is luck: it is not believed."""
        share = self.wanted_share or 0.0
        failing = min((it.rate_per_s for it in tries if it.held_share < share), default=None)
        held = (it.rate_per_s for it in tries if it.held_share >= share)
        return max((it for it in held if failing is None or it < failing), default=None), failing


def load_plan(
    rate: str, duration_s: float, requests: int | None, *, slo: str | None, share: float
) -> LoadPlan:
    rates = parse_rates(rate)
    limits_s = parse_limits(slo) if slo is not None else {}
    if not rates and not limits_s:
        raise UsageError(
            f"--rate {AUTO} looks for the highest rate within limits, and --slo is missing",
            hint="such as --slo ttft=2s,tpot=100ms",
        )
    # One rate with limits is judged and not searched from.
    is_searched = limits_s and len(rates) != 1
    return LoadPlan(rates, limits_s, share if is_searched else None, duration_s, requests)


def parse_limits(text: str) -> dict[str, float]:
    """Read `ttft=2s,tpot=100ms` as seconds by name; UsageError names what is wrong."""
    seconds: dict[str, float] = {}
    for part in text.split(","):
        name, equals, span = (word.strip() for word in part.partition("="))
        if name not in LIMITED or not equals:
            raise UsageError(
                f"--slo: not a limit: {part.strip()!r}",
                hint=f"such as ttft=2s,tpot=100ms; names are {', '.join(LIMITED)}",
            )
        if name in seconds:
            raise UsageError(f"--slo: {name} is limited twice")
        seconds[name] = parse_span(span, f"--slo: {name}")
    return seconds


def parse_span(text: str, what: str) -> float:
    """Read `100ms`, `2.5s` or `10min` in seconds, more than nothing; UsageError otherwise."""
    found = _SPAN.fullmatch(text.strip())
    if found is None or float(found[1]) == 0:
        raise UsageError(f"{what}: not a duration: {text!r}", hint="such as 100ms, 2.5s or 10min")
    return float(found[1]) * _UNITS_S[found[2]]


def parse_rates(text: str) -> tuple[float, ...]:
    """Read `auto` as nothing, `2` or `0.5,1,2` ascending; UsageError names what is wrong."""
    if text.strip() == AUTO:
        return ()
    return tuple(sorted({_rate(word.strip()) for word in text.split(",")}))


def _rate(word: str) -> float:
    rate_per_s = float(word) if word.replace(".", "", 1).isdecimal() else 0.0
    if not 0 < rate_per_s <= MOST_PER_S:
        raise UsageError(
            f"--rate: not a rate: {word!r}", hint="requests a second: 2, or 0.5,1,2, or auto"
        )
    return rate_per_s


@dataclass(slots=True)
class LoadMeasurement:
    plan: LoadPlan
    host: DockerHost
    served: Endpoint
    server: MeasuredServer
    watch: BenchWatch
    seed: int = field(default_factory=lambda: time.time_ns() % 2**31)
    """Of the arrivals, and of what no prefix cache may know; another one each run."""
    _cells: list[Cell] = field(default_factory=list)
    _tools: list[ToolResult] = field(default_factory=list)

    def run(self, say: Callable[[str], None]) -> SuiteResult:
        """Take rate after rate; BenchError when not even the first could be taken."""
        notes: tuple[str, ...] = ()
        try:
            while (rate_per_s := self.plan.next_rate(self._tries())) is not None:
                self._take(rate_per_s, say)
        except KeyboardInterrupt:
            notes = (INTERRUPTED,)
        except SparkdeployError as error:
            if not self._cells:
                raise
            notes = (GONE, error.message)
        sustained = self.plan.sustained(self._tries())
        if sustained is not None:
            say(sustained_text(sustained))
        return SuiteResult(
            name=SuiteName.LOAD,
            prompts=digest(_PROMPTS),
            rounds=1,
            warmups=1,
            is_complete=not notes,
            cells=tuple(sorted(self._cells, key=lambda cell: cell.load.rate_per_s)),  # type: ignore[union-attr]  # each has one
            tools=tuple(self._tools),
            notes=notes,
            sustained=sustained,
        )

    def _tries(self) -> list[LoadResult]:
        return [cell.load for cell in self._cells if cell.load is not None]

    def _take(self, rate_per_s: float, say: Callable[[str], None]) -> None:
        count = self.plan.count(rate_per_s)
        took = format_seconds(count / rate_per_s)
        say(f"{rate_per_s:.4g} requests a second for {took}, and until all are answered")
        self.seed += 1
        before, start_s = self.server.counters(), time.perf_counter()
        result = vllm_bench(
            self.host,
            self.served,
            "load",
            texts=texts_of(count, self.seed),
            more=goodput_options(self.plan.limits_s),
            seed=self.seed,
            rate=rate_per_s,
            prompts=count,
        )
        readings = self.watch.between(start_s, time.perf_counter())
        deltas = self.server.counted_since(before, ()) if before is not None else []
        load = load_result(self.plan, rate_per_s, result.report)
        round_result = _round(load, result.report)
        largest = max(prompt.max_tokens for prompt in _PROMPTS)
        cell = Cell(
            MIX,
            concurrency=0,
            max_tokens=min(largest, MOST_TOKENS),
            rounds=(round_result,),
            latency=round_result.latency,
            statistics=summaries((round_result,)),
            server=together(deltas, readings),
            machine=machine_watch(readings),
            load=load,
        )
        self._cells.append(cell)
        self._tools.append(result)
        held = f", {load.held} of {load.requests} held the limits" if self.plan.limits_s else ""
        failed = f", {load.failures} failed" if load.failures else ""
        say(f"{rate_per_s:.4g}/s: {load.completed_per_s:.3f}/s done{held}{failed}")


def texts_of(count: int, seed: int) -> str:
    """Return the shipped prompts in turn as ShareGPT has it: an answer says how long it may be."""
    dice = random.Random(seed)  # noqa: S311 - a text, not a secret
    entries = []
    for index in range(count):
        prompt = _PROMPTS[index % len(_PROMPTS)]
        words = "\n\n".join(str(message["content"]) for message in prompt.messages)
        question = f"Request {dice.getrandbits(48):012x}.\n\n{words}"
        answer = "a " * min(prompt.max_tokens, MOST_TOKENS)
        entries.append({"conversations": [{"value": question}, {"value": answer.strip()}]})
    return json.dumps(entries)


def goodput_options(limits_s: Mapping[str, float]) -> tuple[str, ...]:
    limits = (f"{LIMITED[name]}:{limit * 1000:g}" for name, limit in limits_s.items())
    return ("--goodput", *limits) if limits_s else ()


def load_result(plan: LoadPlan, rate_per_s: float, report: Mapping[str, Any]) -> LoadResult:
    """Return what the tool's report says of one rate."""
    goodput = report.get("request_goodput") if plan.limits_s else None
    requests, completed = plan.count(rate_per_s), int(report["completed"])
    return LoadResult(
        rate_per_s=rate_per_s,
        requests=requests,
        failures=requests - completed,
        duration_s=report["duration"],
        completed_per_s=report["request_throughput"],
        completion_tok_s=report["output_throughput"],
        most_at_once=report.get("max_concurrent_requests"),
        limits_s=dict(plan.limits_s),
        held=round((goodput or 0.0) * report["duration"]),
        goodput_per_s=goodput,
    )


def _round(load: LoadResult, report: Mapping[str, Any]) -> RoundResult:
    done, tokens = load.requests - load.failures, int(report["total_output_tokens"])
    return RoundResult(
        round=1,
        duration_s=load.duration_s,
        requests=load.requests,
        failures=load.failures,
        prompt_tokens=int(report["total_input_tokens"]),
        completion_tokens=tokens,
        end_to_end_tok_s=load.completion_tok_s,
        decode_tok_s=None,
        stream_decode_tok_s=None,
        latency=Latency(
            _quantiles(report, "ttft", done),
            _quantiles(report, "tpot", done),
            _quantiles(report, "itl", max(tokens - done, 0)),
            _quantiles(report, "e2el", done),
        ),
    )


def _quantiles(report: Mapping[str, Any], name: str, count: int) -> Quantiles | None:
    if report.get(f"p50_{name}_ms") is None:
        return None
    p50, p95, p99, mean, most = (
        report[f"{which}_{name}_ms"] / 1000 for which in ("p50", "p95", "p99", "mean", "p100")
    )
    return Quantiles(count, p50, p95, p99, mean, most)
