"""`bench`: reach a server, take the suites or ask for quality, keep the record; make a page."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sparkdeploy import __version__, labels
from sparkdeploy.bench.files import KeptRun, Shelf, run_id, write_record
from sparkdeploy.bench.measure import GONE, MeasuredServer, Measurement, find_dialect
from sparkdeploy.bench.pooling import PoolingFigures, measure_pooling
from sparkdeploy.bench.quality import needle, tool_calls
from sparkdeploy.bench.quality.capture import first_texts, read_capture, take_capture
from sparkdeploy.bench.record import Run, SuiteResult
from sparkdeploy.bench.report.draw import SERIES
from sparkdeploy.bench.report.page import report_page
from sparkdeploy.bench.report.speed import read_published
from sparkdeploy.bench.streams import Streams
from sparkdeploy.bench.suites import Suite, SuiteName, fixed_suite, sweep_suite
from sparkdeploy.bench.tools import Load, load_for, measure_with_tools
from sparkdeploy.bench.watch import BenchWatch
from sparkdeploy.commands.bench.origin import deployment_origin, endpoint_origin
from sparkdeploy.commands.reach import connect
from sparkdeploy.console import console, format_seconds
from sparkdeploy.deploy.deployments import require_deployment
from sparkdeploy.deploy.serving import model_of, read_key_file
from sparkdeploy.errors import BenchError, SparkdeployError, UnhealthyError, UsageError
from sparkdeploy.node.facts import THIS_MACHINE
from sparkdeploy.node.private_folder import make_private
from sparkdeploy.server.client import ServedModel
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.bench.quality.capture import Capture
    from sparkdeploy.bench.record import RunOrigin
    from sparkdeploy.bench.suites import Turn
    from sparkdeploy.console import Step
    from sparkdeploy.settings import Settings

ISO_8601 = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class WantedRun:
    suites: tuple[SuiteName, ...]
    rounds: int
    concurrency: tuple[int, ...]
    context: tuple[int, ...]
    save: str | None = None
    """A label, or the FILE.json to write instead of the shelf's."""

    @property
    def file(self) -> Path | None:
        return Path(self.save) if self.save and self.save.endswith(".json") else None


@dataclass(frozen=True, slots=True)
class Access:
    """What a URL needs beside itself; a deployment of sparkdeploy needs neither."""

    key_file: Path | None = None
    model: str | None = None
    """The served name; None is the first that the server names."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    base_url: str
    api_key: str | None = field(repr=False)
    model: str
    max_model_len: int | None
    container_id: str | None
    origin: RunOrigin


@dataclass(frozen=True, slots=True)
class Finished:
    run: Run
    path: Path
    failure: SparkdeployError | None = None
    """What ended the run after something had been measured."""


def shelf_of(settings: Settings) -> Shelf:
    return Shelf(settings.state_dir / "bench")


def reach_deployment(name: str, settings: Settings) -> Endpoint:
    with connect(settings) as host:
        fact = require_deployment(host, name).current
        with model_of(fact, settings) as model:
            if not fact.is_running or not model.is_healthy():
                raise UnhealthyError(
                    f"deployment {name} does not answer", hint="`sparkdeploy status` shows why"
                )
            origin = deployment_origin(host, fact, settings, model)
            return _endpoint(model, fact.container_id, origin)


def server_at(url: str, access: Access) -> ServedModel:
    base_url = url.rstrip("/").removesuffix("/v1")
    parts = urlsplit(base_url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{url!r} is no address", hint="such as http://127.0.0.1:8000")
    return ServedModel(base_url, read_key_file(access.key_file), model=access.model)


def reach_url(url: str, access: Access) -> Endpoint:
    """Return the server at an address; UnhealthyError when it does not answer."""
    with server_at(url, access) as model:
        return _endpoint(model, None, endpoint_origin(model))


def _endpoint(model: ServedModel, container_id: str | None, origin: RunOrigin) -> Endpoint:
    limit = model.max_model_len()
    return Endpoint(model.base_url, model.api_key, model.name, limit, container_id, origin)


def measure_endpoint(endpoint: Endpoint, wanted: WantedRun, settings: Settings) -> Finished:
    """Take the suites and write the record, also of a run that is interrupted or fails half-way.

    Raises BenchError when the server cannot be measured at all, and UsageError before anything is
    measured when a suite does not fit the server.
    """
    started = datetime.now(UTC)
    plans = [_planned(name, endpoint, wanted) for name in wanted.suites]
    results: list[SuiteResult] = []
    failure: SparkdeployError | None = None
    with _server(endpoint) as (server, watch):
        for plan in plans:
            try:
                if isinstance(plan, Suite):
                    results.append(_take_suite(plan, server, watch))
                else:
                    results.append(_take_standard(plan, endpoint, settings))
            except SparkdeployError as error:
                if not results:
                    raise
                failure = error
                break
            if not results[-1].is_complete:
                break
    recipe = endpoint.origin.recipe
    label = recipe.name if recipe is not None else endpoint.model
    if wanted.save and wanted.file is None:
        label = wanted.save
    run = Run(
        run_id=run_id(started, label, "-".join(wanted.suites)),
        label=label,
        started_at=f"{started:{ISO_8601}}",
        finished_at=f"{datetime.now(UTC):{ISO_8601}}",
        origin=endpoint.origin,
        suites=tuple(results),
    )
    folder = shelf_of(settings).folder
    if wanted.file is None:
        make_private(folder)
    path = wanted.file or folder / f"{run.run_id}.json"
    write_record(run, path)
    return Finished(run, path, failure)


def require_figures(finished: Finished) -> None:
    if finished.failure is not None:
        raise finished.failure
    for suite in finished.run.suites:
        if GONE in suite.notes:
            raise BenchError(
                f"suite {suite.name}: {GONE}", hint=f"what was measured until then: {finished.path}"
            )
    if not all(suite.is_complete for suite in finished.run.suites):
        raise KeyboardInterrupt
    for suite in finished.run.suites:
        for cell in suite.cells:
            if not cell.statistics:
                failed = next(item.failure for item in cell.samples if item.failure)
                raise BenchError(
                    f"suite {suite.name}: no request of {cell.prompt} succeeded "
                    f"({failed.kind}: {failed.message})"
                )


def write_report(names: Sequence[str], output: Path, settings: Settings) -> int:
    """A run is named by its id, its label (the newest wins) or its file."""
    shelf = shelf_of(settings)
    runs = [shelf.find(name).run for name in names]
    if not names:
        newest = {item.run.label: item.run for item in kept_runs(settings)}
        # As many as there are colours.
        runs = list(newest.values())[-len(SERIES) :]
    if not runs:
        raise BenchError(
            f"there are no runs in {shelf.folder}",
            hint="`sparkdeploy bench` makes one, or name the files of some",
        )
    page = report_page(
        runs,
        read_published(resources() / "recipes" / "facts" / "published.yaml"),
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=__version__,
    )
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BenchError(f"{output} cannot be written: {error.strerror}") from error
    return len(runs)


def kept_runs(settings: Settings) -> tuple[KeptRun, ...]:
    """Return every run, oldest first; a damaged record is named and left out."""
    kept, damaged = shelf_of(settings).runs()
    for message in damaged:
        console.warn(message)
    return kept


def _take_suite(suite: Suite, server: MeasuredServer, watch: BenchWatch) -> SuiteResult:
    for note in suite.notes:
        console.info(f"  {note}")
    with console.step(f"suite {suite.name}") as step:
        return Measurement(suite, server, watch).run(functools.partial(_show, step, suite))


def _take_standard(load: Load, endpoint: Endpoint, settings: Settings) -> SuiteResult:
    has_key = endpoint.api_key is not None
    with connect(settings) as host:
        return measure_with_tools(host, load, endpoint.container_id or "", has_key=has_key)


def _planned(name: SuiteName, endpoint: Endpoint, wanted: WantedRun) -> Suite | Load:
    """Refuse what cannot be asked of this server before an hour is spent on other suites."""
    if name in {SuiteName.FIVE, SuiteName.DECODE}:
        return fixed_suite(name, wanted.rounds)
    limit = endpoint.max_model_len
    if name is SuiteName.SWEEP:
        return sweep_suite(
            wanted.rounds,
            concurrency=wanted.concurrency,
            context=wanted.context,
            max_model_len=limit,
        )
    if endpoint.container_id is None:
        raise UsageError(
            "suite standard needs a deployment: the tools use its container and its tokenizer",
            hint="leave --url out, or take another suite",
        )
    return load_for(endpoint.base_url, endpoint.model, rounds=wanted.rounds, max_model_len=limit)


def _show(
    step: Step, suite: Suite, turn: Turn, tok_s: float | None, remaining_s: float | None
) -> None:
    condition, number = turn.condition, turn.round
    where = condition.prompt
    if condition.context_tokens is not None:
        where = f"{condition.concurrency} streams, context {condition.context_tokens}"
    which = f"round {number} of {suite.rounds}" if number else "warm-up"
    speed = f", {tok_s:.1f} tok/s" if tok_s is not None else ""
    left = f", about {format_seconds(remaining_s)} left" if remaining_s is not None else ""
    step.say(f"{where}, {which}{speed}{left}")


@contextlib.contextmanager
def _server(endpoint: Endpoint) -> Iterator[tuple[MeasuredServer, BenchWatch]]:
    machine = THIS_MACHINE if endpoint.origin.machine is not None else None
    with (
        Streams(endpoint.base_url, endpoint.api_key) as streams,
        ServedModel(endpoint.base_url, endpoint.api_key, model=endpoint.model) as model,
        ServedModel(endpoint.base_url, endpoint.api_key, model=endpoint.model) as watched,
    ):
        has_metrics = False
        with contextlib.suppress(UnhealthyError):
            has_metrics = "vllm:" in model.exposition()
        dialect = find_dialect(streams, endpoint.model)
        exposition = model.exposition if has_metrics else None
        server = MeasuredServer(streams, endpoint.model, dialect, exposition)
        console.detail(f"each request asks the server to count: {dialect.value}")
        with BenchWatch(machine, watched.exposition if has_metrics else None) as watch:
            yield server, watch


def capture_of(
    side: str, *, count: int, tokens: int, settings: Settings, access: Access
) -> Capture:
    """Return what a side says: a saved capture is read, a deployment or an address is asked."""
    # A deployment's name has neither a slash nor this ending.
    if "://" not in side and (side.endswith(".json") or "/" in side):
        saved = read_capture(Path(side))
        return replace(saved, label=f"{Path(side).stem} ({saved.label})")
    model, label = _served_side(side, settings, access)
    with model, console.step(f"quality of {label}") as step:
        return take_capture(
            model,
            first_texts(count),
            tokens=tokens,
            label=label,
            now=datetime.now(UTC),
            on_progress=lambda done, total: step.say(f"text {done + 1} of {total}"),
        )


def _served_side(side: str, settings: Settings, access: Access) -> tuple[ServedModel, str]:
    if "://" in side:
        return server_at(side, access), side
    with connect(settings) as host:
        fact = require_deployment(host, side).current
    return model_of(fact, settings), f"{side} ({fact.labels.get(labels.RECIPE, 'no recipe')})"


def search_needles(
    side: str, lengths: Sequence[int], settings: Settings, access: Access
) -> tuple[needle.NeedleResult, ...]:
    model, label = _served_side(side, settings, access)
    with model, console.step(f"needles in {label}") as step:
        fitting = needle.fitting(lengths, model.max_model_len())
        return tuple(needle.search(model, fitting, on_progress=step.say))


def bench_pooling(
    side: str, concurrency: Sequence[int], requests: int, settings: Settings, access: Access
) -> tuple[PoolingFigures, ...]:
    """Measure a model that writes no text; BenchError for one that does."""
    model, label = _served_side(side, settings, access)
    with model, console.step(f"requests to {label}") as step:
        endpoint = model.pooling_endpoint()
        if endpoint is None:
            raise BenchError(f"{label} writes text", hint="measure it with `sparkdeploy bench`")

        def opened() -> ServedModel:
            return ServedModel(model.base_url, model.api_key, model=model.name)

        figures = measure_pooling(
            opened, endpoint, concurrency=concurrency, requests=requests, on_progress=step.say
        )
        return tuple(figures)


def try_tools(side: str, settings: Settings, access: Access) -> tuple[tool_calls.CaseResult, ...]:
    model, label = _served_side(side, settings, access)
    with model, console.step(f"tool calls of {label}") as step:
        return tuple(tool_calls.run_cases(model, on_progress=step.say))
