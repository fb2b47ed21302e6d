"""`bench load`: what was typed as a plan, and its taking."""

from __future__ import annotations

import functools
import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkdeploy.bench.load.additions import body_of, headers_of
from sparkdeploy.bench.load.conversations import Conversations
from sparkdeploy.bench.load.limits import parse_limits, parse_span
from sparkdeploy.bench.load.measure import LoadMeasurement
from sparkdeploy.bench.load.plan import (
    AUTO,
    Coming,
    LoadPlan,
    Texts,
    parse_rates,
    require_seed,
    shipped_mix,
    total_s,
)
from sparkdeploy.bench.load.prompts import read_prompts
from sparkdeploy.bench.load.search import Search
from sparkdeploy.bench.load.tables import sustained_text
from sparkdeploy.bench.suites import Route
from sparkdeploy.console import console, format_seconds
from sparkdeploy.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.bench.load.arrivals import Law
    from sparkdeploy.bench.measure import MeasuredServer
    from sparkdeploy.bench.record import Cell, SuiteResult
    from sparkdeploy.bench.watch import BenchWatch
    from sparkdeploy.console import Step

MOST_FILES = 65536


@dataclass(frozen=True, slots=True)
class TypedComing:
    """How requests come, in the words of the command line."""

    rate: str
    arrivals: Law
    duration: str
    requests: int | None
    ramp: str
    seed: int


@dataclass(frozen=True, slots=True)
class TypedLimits:
    slo: str | None
    share: float


@dataclass(frozen=True, slots=True)
class TypedRequests:
    """What each request is."""

    route: Route
    prompts: Path | None
    turns: int | None
    """Of conversations; None for single requests."""
    sampling: Mapping[str, float | None]
    extra_body: str | None
    headers: Sequence[str] = field(repr=False)


def load_plan(typed: TypedComing, limited: TypedLimits, asked: TypedRequests) -> LoadPlan:
    """Return the plan; UsageError names the first word that is wrong."""
    rates = parse_rates(typed.rate)
    limits = parse_limits(limited.slo) if limited.slo is not None else None
    if not rates and limits is None:
        raise UsageError(
            f"--rate {AUTO} looks for the highest rate that holds limits, and there are none",
            hint="such as --slo ttft=2s,gap=100ms",
        )
    # One rate with limits is judged and not searched from.
    is_searched = limits is not None and len(rates) != 1
    return LoadPlan(
        coming=_coming(typed),
        texts=_texts(asked),
        search=Search(rates, limited.share) if is_searched else None,
        rates=rates,
        limits=limits,
        route=asked.route,
        body=body_of(asked.sampling, asked.extra_body),
        headers=headers_of(asked.headers),
    )


def _texts(asked: TypedRequests) -> Texts | Conversations:
    if asked.turns is not None:
        if asked.prompts is not None or asked.route is not Route.CHAT:
            raise UsageError("--turns has prompts of its own, and they go by --route chat")
        return Conversations(asked.turns)
    if asked.prompts is not None:
        return read_prompts(asked.prompts, asked.route)
    return shipped_mix()


def _coming(typed: TypedComing) -> Coming:
    return Coming(
        law=typed.arrivals,
        duration_s=parse_span(typed.duration, "--duration"),
        requests=typed.requests,
        ramp_s=0.0 if typed.ramp == "0" else parse_span(typed.ramp, "--ramp"),
        seed=require_seed(typed.seed),
    )


def require_load(plan: LoadPlan | None) -> LoadPlan:
    if plan is None:
        raise UsageError(
            "suite load is taken alone: it has options of its own",
            hint="`sparkdeploy bench load --help` lists them",
        )
    return plan


def _allow_connections() -> None:
    """Let this process open as many connections as it may: a shell's 1024 files are soon waiting.

    A request without a file to connect by would count as the server's failure.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def take_load(plan: LoadPlan, server: MeasuredServer, watch: BenchWatch) -> SuiteResult:
    _allow_connections()
    with console.step("suite load") as step:
        result = LoadMeasurement(plan, server, watch).run(functools.partial(_show, step, plan))
        if result.sustained is not None:
            step.say(sustained_text(result.sustained))
    return result


def _show(step: Step, plan: LoadPlan, rate_per_s: float, cell: Cell | None) -> None:
    load = cell.load if cell is not None else None
    if load is None:
        took = format_seconds(total_s(plan.coming, (rate_per_s,)))
        step.say(f"{rate_per_s:.4g} requests a second for {took}, and until all are answered")
        return
    held = f", {load.held} of {load.requests} held the limits" if plan.limits else ""
    failed = f", {load.failures} failed" if load.failures else ""
    step.say(f"{rate_per_s:.4g}/s: {load.completed_per_s:.3f}/s done{held}{failed}")
