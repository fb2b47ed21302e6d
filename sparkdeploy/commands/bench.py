"""`bench`: reach a server, take the suites, keep the record."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sparkdeploy.bench import prompts
from sparkdeploy.bench.measure import GONE, Measurement, Progress, Target, find_dialect
from sparkdeploy.bench.record import Run, SuiteResult, write_record
from sparkdeploy.bench.shelf import Shelf, run_id
from sparkdeploy.bench.streams import Streams
from sparkdeploy.bench.suites import (
    SWEEP_CONCURRENCY,
    SWEEP_CONTEXT,
    Suite,
    SuiteName,
    fixed_suite,
    sweep_suite,
)
from sparkdeploy.bench.tools import Load, load_for
from sparkdeploy.bench.watch import Watch
from sparkdeploy.commands.bench_origin import deployment_origin, endpoint_origin
from sparkdeploy.commands.bench_tools import measure_with_tools
from sparkdeploy.commands.drafting import connect
from sparkdeploy.console import console, format_seconds
from sparkdeploy.deploy.deployments import require_deployment
from sparkdeploy.deploy.serving import model_of, read_key_file
from sparkdeploy.errors import BenchError, SparkdeployError, UnhealthyError, UsageError
from sparkdeploy.node.facts import THIS_MACHINE
from sparkdeploy.node.private_folder import make_private
from sparkdeploy.server.client import ServedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from sparkdeploy.bench.origin import Origin
    from sparkdeploy.console import Step
    from sparkdeploy.settings import Settings

_ASKED = {SuiteName.FIVE: prompts.FIVE, SuiteName.DECODE: prompts.DECODE}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user typed."""

    suites: tuple[SuiteName, ...]
    rounds: int
    label: str | None = None
    concurrency: tuple[int, ...] = SWEEP_CONCURRENCY
    context: tuple[int, ...] = SWEEP_CONTEXT
    file: Path | None = None
    """Where the record goes instead of the shelf."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that answers, and what is known of it."""

    base_url: str
    api_key: str | None = field(repr=False)
    model: str
    max_model_len: int | None
    is_here: bool
    container_id: str | None
    origin: Origin


@dataclass(frozen=True, slots=True)
class Finished:
    """A run and where it was written."""

    run: Run
    path: Path
    failure: SparkdeployError | None = None
    """What ended the run after something had been measured."""

    @property
    def is_complete(self) -> bool:
        """Say whether nothing was interrupted."""
        return all(suite.is_complete for suite in self.run.suites)


@dataclass(frozen=True, slots=True)
class _Tools:
    """Suite `standard`, planned."""

    load: Load
    container_id: str


def shelf_of(settings: Settings) -> Shelf:
    """Return the user's records."""
    return Shelf(settings.state_dir / "bench")


def reach_deployment(name: str, settings: Settings) -> Endpoint:
    """Return the server of a deployment; UnhealthyError when it does not answer."""
    with connect(settings) as host:
        fact = require_deployment(host, name).current
        with model_of(fact, settings) as model:
            if not fact.is_running or not model.is_healthy():
                raise UnhealthyError(
                    f"deployment {name} does not answer", hint="`sparkdeploy status` shows why"
                )
            origin = deployment_origin(
                host, fact, settings, url=model.base_url, version=model.version()
            )
            return Endpoint(
                base_url=model.base_url,
                api_key=model.api_key,
                model=model.name,
                max_model_len=model.max_model_len(),
                is_here=True,
                container_id=fact.container_id,
                origin=origin,
            )


def reach_url(url: str, model_name: str | None, key_file: Path | None) -> Endpoint:
    """Return any OpenAI-compatible server; UnhealthyError when it does not answer."""
    base_url = url.rstrip("/").removesuffix("/v1")
    parts = urlsplit(base_url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{url!r} is no address", hint="such as http://127.0.0.1:8000")
    is_here = parts.hostname in {"127.0.0.1", "localhost", "::1"}
    key = read_key_file(key_file)
    with ServedModel(base_url, key, model=model_name) as model:
        name = model.name
        origin = endpoint_origin(base_url, name, version=model.version(), is_here=is_here)
        return Endpoint(base_url, key, name, model.max_model_len(), is_here, None, origin)


def measure_endpoint(endpoint: Endpoint, wanted: Wanted, settings: Settings) -> Finished:
    """Take the suites and write the record, also of a run that is interrupted or fails half-way.

    Raises BenchError when the server cannot be measured at all, and UsageError before anything is
    measured when a suite does not fit the server.
    """
    started = datetime.now(UTC)
    plans = [_planned(name, endpoint, wanted) for name in wanted.suites]
    results: list[SuiteResult] = []
    failure: SparkdeployError | None = None
    with _target(endpoint) as (target, watch):
        for plan in plans:
            try:
                if isinstance(plan, Suite):
                    results.append(_take_suite(plan, target, watch))
                else:
                    results.append(_take_standard(plan, endpoint, settings))
            except SparkdeployError as error:
                if not results:
                    raise
                failure = error
                break
            if not results[-1].is_complete:
                break
    label = wanted.label or _label(endpoint)
    run = Run(
        run_id=run_id(started, label, "-".join(wanted.suites)),
        label=label,
        started_at=_iso(started),
        finished_at=_iso(datetime.now(UTC)),
        origin=endpoint.origin,
        suites=tuple(results),
    )
    if wanted.file is None:
        make_private(shelf_of(settings).folder)
    path = wanted.file or shelf_of(settings).path_of(run)
    write_record(run, path)
    return Finished(run, path, failure)


def require_figures(finished: Finished) -> None:
    """Raise what a run that did not come to its end, or counted nothing, has to say."""
    if finished.failure is not None:
        raise finished.failure
    for suite in finished.run.suites:
        if GONE in suite.notes:
            raise BenchError(f"suite {suite.name}: {GONE}", hint=f"what there is: {finished.path}")
    if not finished.is_complete:
        raise KeyboardInterrupt
    for suite in finished.run.suites:
        for cell in suite.cells:
            if not cell.statistics:
                failed = next(item.failure for item in cell.samples if item.failure)
                raise BenchError(
                    f"suite {suite.name}: no request of {cell.prompt} succeeded "
                    f"({failed.kind}: {failed.message})"
                )


def _take_suite(suite: Suite, target: Target, watch: Watch) -> SuiteResult:
    for note in suite.notes:
        console.info(f"  {note}")
    asked = _ASKED.get(suite.name, ())
    seed = time.time_ns() % 2**31
    measurement = Measurement(suite, target, watch, asked=asked, seed=seed)
    with console.step(f"suite {suite.name}") as step:
        return measurement.run(_shown_on(step, suite))


def _take_standard(tools: _Tools, endpoint: Endpoint, settings: Settings) -> SuiteResult:
    has_key = endpoint.api_key is not None
    return measure_with_tools(tools.load, tools.container_id, settings, has_key=has_key)


def _planned(name: SuiteName, endpoint: Endpoint, wanted: Wanted) -> Suite | _Tools:
    """Refuse what cannot be asked of this server before an hour is spent on other suites."""
    if name in _ASKED:
        return fixed_suite(name, _ASKED[name], wanted.rounds)
    if name is SuiteName.STANDARD:
        return _planned_tools(endpoint, wanted)
    return sweep_suite(
        wanted.rounds,
        concurrency=wanted.concurrency,
        context=wanted.context,
        max_model_len=endpoint.max_model_len,
    )


def _planned_tools(endpoint: Endpoint, wanted: Wanted) -> _Tools:
    if endpoint.container_id is None:
        raise UsageError(
            "suite standard needs a deployment of ours: the tools use its container and tokenizer",
            hint="leave --url out, or take another suite",
        )
    load = load_for(
        endpoint.base_url,
        endpoint.model,
        rounds=wanted.rounds,
        max_model_len=endpoint.max_model_len,
    )
    return _Tools(load, endpoint.container_id)


def _shown_on(step: Step, suite: Suite) -> Callable[[Progress], None]:
    def show(progress: Progress) -> None:
        condition, number = progress.turn.condition, progress.turn.round
        where = condition.prompt
        if condition.context_tokens is not None:
            where = f"{condition.concurrency} streams, context {condition.context_tokens}"
        turn = f"round {number} of {suite.rounds}" if number else "warm-up"
        speed = f", {progress.tok_s:.1f} tok/s" if progress.tok_s is not None else ""
        left = ""
        if progress.remaining_s is not None:
            left = f", about {format_seconds(progress.remaining_s)} left"
        step.say(f"{where}, {turn}{speed}{left}")

    return show


@contextlib.contextmanager
def _target(endpoint: Endpoint) -> Iterator[tuple[Target, Watch]]:
    machine = THIS_MACHINE if endpoint.is_here else None
    with (
        Streams(endpoint.base_url, endpoint.api_key) as streams,
        ServedModel(endpoint.base_url, endpoint.api_key, model=endpoint.model) as model,
        ServedModel(endpoint.base_url, endpoint.api_key, model=endpoint.model) as watched,
    ):
        has_metrics = _has_metrics(model)
        target = Target(
            streams,
            endpoint.model,
            find_dialect(streams, endpoint.model),
            model.exposition if has_metrics else None,
        )
        console.detail(f"the server is asked for {target.dialect.value}")
        with Watch(machine, watched.exposition if has_metrics else None) as watch:
            yield target, watch


def _has_metrics(model: ServedModel) -> bool:
    try:
        return "vllm:" in model.exposition()
    except UnhealthyError:
        return False


def _label(endpoint: Endpoint) -> str:
    recipe = endpoint.origin.recipe
    return recipe.name if recipe is not None else endpoint.model


def _iso(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
