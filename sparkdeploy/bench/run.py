"""`bench`: take the suites of a server, keep the record; make a page."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from sparkdeploy import __version__
from sparkdeploy.bench.compare import RunComparison, Side, compare, sides_of
from sparkdeploy.bench.endpoint import Access, Endpoint, reach
from sparkdeploy.bench.figures import mean_of
from sparkdeploy.bench.files import (
    KeptRun,
    RunStore,
    read_all,
    require_writable,
    run_id,
    write_record,
    write_whole,
)
from sparkdeploy.bench.load import LoadMeasurement, LoadPlan
from sparkdeploy.bench.measure import GONE, MeasuredServer, Measurement, outcome_of, usage_support
from sparkdeploy.bench.quality.comparison import QualityResult, newest_of_each, read_result
from sparkdeploy.bench.record import Run, RunOrigin, SuiteResult
from sparkdeploy.bench.report.page import MOST_RUNS, read_published, report_page
from sparkdeploy.bench.streams import Streams
from sparkdeploy.bench.suites import SuiteName, fixed_suite, sweep_suite
from sparkdeploy.bench.tools import load_for, measure_with_tools
from sparkdeploy.bench.watch import BenchWatch
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.errors import BenchError, SparkdeployError, UnhealthyError, UsageError
from sparkdeploy.node.facts import THIS_MACHINE
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import Settings, resources
from sparkdeploy.terminal.console import console

Taker = Callable[[MeasuredServer, BenchWatch], SuiteResult]

T = TypeVar("T")
GATED_SUITE = "five"
GATED_METRIC = "end_to_end_tok_s"
ISO_8601 = "%Y-%m-%dT%H:%M:%SZ"
ONE_START = (
    "all runs of a side are of one start: what a start decides (clocks, memory, chosen kernels) "
    "may make such a difference, and no interval holds it"
)


@dataclass(frozen=True, slots=True)
class WantedRun:
    suites: tuple[SuiteName, ...]
    rounds: int
    concurrency: tuple[int, ...]
    context: tuple[int, ...]
    save: str | None = None
    """A label, or the FILE.json to write instead of one in the store."""
    prompts: int | None = None
    """Of `five` and `decode` the first so many prompts; None for all."""
    load: LoadPlan | None = None

    @property
    def file(self) -> Path | None:
        return Path(self.save) if self.save and self.save.endswith(".json") else None


@dataclass(frozen=True, slots=True)
class Finished:
    run: Run
    path: Path
    failure: SparkdeployError | None = None
    """What ended the run after something had been measured."""
    lost: SparkdeployError | None = None
    """Why the record could not be written in the end; the figures are in `run` all the same."""


def run_store(settings: Settings) -> RunStore:
    return RunStore(settings.state_dir / "bench")


def measure_endpoint(endpoint: Endpoint, wanted: WantedRun, settings: Settings) -> Finished:
    """Take the suites and keep the record after each, also of a run that ends half-way."""
    store = run_store(settings)
    run = _begun(endpoint, wanted, store)
    path = wanted.file or store.folder / f"{run.run_id}.json"
    if path.exists():
        raise UsageError(f"{path} exists", hint="name another file with --save, or remove it")
    require_writable(path)
    takers = [_taker(name, endpoint, wanted, settings) for name in wanted.suites]
    failure = lost = None
    with _server(endpoint) as (server, watch):
        for take in takers:
            try:
                result = take(server, watch)
            except SparkdeployError as error:
                if not run.suites:
                    raise
                failure = error
                break
            finished_at = f"{datetime.now(UTC):{ISO_8601}}"
            run = replace(run, suites=(*run.suites, result), finished_at=finished_at)
            lost = _written(run, path)
            if not result.is_complete:
                break
    return Finished(run, path, failure, lost)


def _written(run: Run, path: Path) -> BenchError | None:
    """Write the record; return why it could not be, for its figures are still to be printed."""
    try:
        write_record(run, path)
    except BenchError as error:
        return error
    return None


def _begun(endpoint: Endpoint, wanted: WantedRun, store: RunStore) -> Run:
    started = datetime.now(UTC)
    recipe = endpoint.origin.recipe
    label = recipe.name if recipe is not None else endpoint.server.name
    if wanted.save and wanted.file is None:
        label = wanted.save
    moment = f"{started:{ISO_8601}}"
    return Run(
        run_id=store.free_id(run_id(started, label, "-".join(wanted.suites))),
        label=label,
        started_at=moment,
        finished_at=moment,
        origin=endpoint.origin,
        suites=(),
    )


def measure_in_turns(
    names: tuple[str, str], wanted: WantedRun, runs: int, settings: Settings, access: Access
) -> RunComparison:
    """Measure each side `runs` times, A B B A A B and so on; every run is kept under its label."""
    if names[0] == names[1]:
        raise UsageError("a pair has two sides, and both are the same")
    endpoints = tuple(reach(name, settings, access) for name in names)
    pair = list(zip(_labels(names, endpoints), endpoints, strict=True))
    measured: dict[str, list[Run]] = {label: [] for label, _ in pair}
    for number in range(runs):
        for label, endpoint in pair if number % 2 == 0 else pair[::-1]:
            console.info(f"run {number + 1} of {runs}: {label}")
            finished = measure_endpoint(endpoint, replace(wanted, save=label), settings)
            require_figures(finished)
            measured[label].append(finished.run)
    base, other = (Side(label, tuple(found)) for label, found in measured.items())
    known = sides_of(item.run for item in kept_runs(settings) if item.is_whole)
    # The pair's own labels stand for the pair's own runs.
    return compare(base, other, [side for side in known if side.label not in measured])


def _labels(names: Sequence[str], endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
    """By their recipes where these differ, else as the sides were named."""
    recipes = [endpoint.origin.recipe for endpoint in endpoints]
    labels = tuple(recipe.name for recipe in recipes if recipe is not None)
    return labels if len(set(labels)) == len(names) else tuple(names)


def require_figures(finished: Finished) -> None:
    if finished.lost is not None:
        raise finished.lost
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
                reason = next(item.failure for item in cell.samples if item.failure)
                raise BenchError(
                    f"suite {suite.name}: no request of {cell.prompt} succeeded "
                    f"({reason.kind}: {reason.message})"
                )
        loads = [cell.load for cell in suite.cells if cell.load is not None]
        if loads and all(load.failures * 2 > load.requests for load in loads):
            failed = sum(load.failures for load in loads)
            asked = sum(load.requests for load in loads)
            raise BenchError(
                f"suite {suite.name}: {failed} of {asked} requests failed",
                hint=f"what was measured: {finished.path}",
            )


def floor_of(origin: RunOrigin, floor_tok_s: float | None) -> tuple[float, str]:
    """UsageError when there is none, before an hour is spent on measuring."""
    if floor_tok_s is not None:
        return floor_tok_s, "--floor"
    recipe = origin.recipe
    if recipe is None or recipe.floor_tok_s is None:
        raise UsageError(
            "--gate has no floor: no recipe with expect.end_to_end_tok_s is known",
            hint="give one with --floor TOK_S",
        )
    return recipe.floor_tok_s, recipe.floor_source


def require_gated_suite(suites: Sequence[str]) -> None:
    if GATED_SUITE not in suites:
        raise UsageError(f"--gate needs suite {GATED_SUITE}", hint=f"add --suite {GATED_SUITE}")


def require_gate(run: Run, floor_tok_s: float, source: str) -> None:
    """Judge the mean of the five prompts, end to end, as published figures are taken."""
    suite = run.suite(GATED_SUITE)
    cells = suite.cells if suite is not None else ()
    failures = sum(cell.failures for cell in cells)
    if failures:
        raise BenchError(f"--gate: {failures} requests failed")
    reached_tok_s = mean_of(cells, GATED_METRIC)
    if reached_tok_s < floor_tok_s:
        raise BenchError(
            f"{reached_tok_s:.1f} tok/s end to end is below the floor of {floor_tok_s:g} ({source})"
        )


def write_report(names: Sequence[str], output: Path, settings: Settings) -> int:
    """A run is named by its id, its label (the newest wins) or its file.

    Of a label the newest with more than a load is meant: the load is found beside it.
    """
    store = run_store(settings)
    kept = kept_runs(settings)
    newest = _shown_of_each(kept)
    runs = list(newest.values())[-MOST_RUNS:]
    if names:
        runs = [newest.get(name) or store.find(name).run for name in names]
    if not runs:
        raise BenchError(
            f"there are no runs in {store.folder}",
            hint="`sparkdeploy bench` makes one, or name the files of some",
        )
    page = report_page(
        runs,
        read_published(resources() / "recipes" / "facts" / "published.yaml"),
        made_at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=__version__,
        known=sides_of(item.run for item in kept if item.is_whole),
        quality=newest_of_each(kept_quality(settings), runs),
    )
    write_whole(page, output)
    return len(runs)


def compare_sides(names: Sequence[str], settings: Settings) -> list[RunComparison]:
    """Hold each side against the first: a label's whole runs, or the one run of an id or a file."""
    store = run_store(settings)
    known = sides_of(item.run for item in kept_runs(settings) if item.is_whole)
    by_label = {side.label: side for side in known}
    base, *others = [by_label.get(name) or Side(name, (store.find(name).run,)) for name in names]
    return [compare(base, other, known) for other in others]


def _shown_of_each(kept: Sequence[KeptRun]) -> dict[str, Run]:
    """Return the run that each label means on a page: its newest whole one, else its newest."""
    by_label: dict[str, list[KeptRun]] = {}
    for item in kept:
        by_label.setdefault(item.run.label, []).append(item)
    shown = {}
    for label, items in by_label.items():
        runs = [item.run for item in items if item.is_whole] or [item.run for item in items]
        more = [run for run in runs if any(suite.name != SuiteName.LOAD for suite in run.suites)]
        shown[label] = (more or runs)[-1]
    return shown


def kept_runs(settings: Settings) -> tuple[KeptRun, ...]:
    """Return every run, oldest first; a damaged record is named and left out."""
    return _without_damaged(*run_store(settings).runs())


def quality_folder(settings: Settings) -> Path:
    return settings.state_dir / "bench" / "quality"


def kept_quality(settings: Settings) -> list[QualityResult]:
    """Return every result; a damaged one is named and left out."""
    return _without_damaged(*read_all(quality_folder(settings), read_result))


def _without_damaged(found: T, damaged: Sequence[str]) -> T:
    for message in damaged:
        console.warn(message)
    return found


def _taker(name: SuiteName, endpoint: Endpoint, wanted: WantedRun, settings: Settings) -> Taker:
    """Return what takes a suite of this server; refuse early what cannot be asked of it."""
    limit, rounds = endpoint.max_model_len, wanted.rounds
    if name in {SuiteName.LOAD, SuiteName.STANDARD} and endpoint.container_id is None:
        raise UsageError(
            f"suite {name} needs a deployment: the tools use its container and its tokenizer",
            hint="leave --url out, or take another suite",
        )
    if (plan := wanted.load) is not None:
        return lambda *seen: _in_container(
            endpoint,
            settings,
            lambda host: _in_a_step(name, LoadMeasurement(plan, host, endpoint, *seen).run),
        )
    if name is SuiteName.STANDARD:
        asked = load_for(rounds, limit)
        return lambda *_: _in_container(
            endpoint, settings, lambda host: measure_with_tools(host, endpoint, asked)
        )
    if name is SuiteName.SWEEP:
        suite = sweep_suite(
            rounds, concurrency=wanted.concurrency, context=wanted.context, max_model_len=limit
        )
    else:
        suite = fixed_suite(name, rounds, wanted.prompts)
    for note in suite.notes:
        console.info(f"  {note}")
    return lambda *there: _in_a_step(name, Measurement(suite, *there).run)


def _in_a_step(name: str, run: Callable[[Callable[[str], None]], SuiteResult]) -> SuiteResult:
    with console.step(f"suite {name}") as step:
        result = run(step.say)
        step.outcome = outcome_of(result)
    return result


def _in_container(
    endpoint: Endpoint, settings: Settings, measure: Callable[[DockerHost], SuiteResult]
) -> SuiteResult:
    if endpoint.server.require_listener is not None:
        endpoint.server.require_listener()
    with connect(settings) as host:
        return measure(host)


@contextlib.contextmanager
def _server(endpoint: Endpoint) -> Iterator[tuple[MeasuredServer, BenchWatch]]:
    machine = THIS_MACHINE if endpoint.origin.machine is not None else None
    there = endpoint.server
    with (
        Streams(
            there.base_url,
            there.api_key,
            ca_file=there.ca_file,
            require_listener=there.require_listener,
        ) as streams,
        there.again() as model,
        there.again() as watched,
    ):
        has_metrics = False
        with contextlib.suppress(UnhealthyError):
            has_metrics = "vllm:" in model.exposition()
        support = usage_support(streams, there.name)
        exposition = model.exposition if has_metrics else None
        server = MeasuredServer(streams, there.name, support, exposition, model.prompt_tokens)
        console.detail(f"each request asks the server to count: {support.value}")
        with BenchWatch(machine, watched.exposition if has_metrics else None) as watch:
            yield server, watch
