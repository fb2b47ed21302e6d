"""`bench [run]`, `ls`, `show` and `compare`: measure a server, look at what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparkdeploy.cli.bench_options import (
    KeyFileOption,
    ModelOption,
    NameArgument,
    UrlOption,
    one_side,
)
from sparkdeploy.cli.options import JsonOption
from sparkdeploy.console import console

if TYPE_CHECKING:
    from sparkdeploy.commands.bench import Finished, Wanted

RunsArgument = Annotated[
    list[str], typer.Argument(help="Runs: an id, a label (its newest run) or a file.")
]
MEASURE = "run"


def register(group: typer.Typer) -> None:
    """Add the commands of this file to the group `bench`."""
    group.command(MEASURE)(measure)
    group.command("ls")(list_runs)
    group.command("show")(show_run)
    group.command("compare")(compare_runs)


def measure(
    name: NameArgument = None,
    url: UrlOption = None,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="five (the default), decode, sweep, standard; with commas, or repeated."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="After one warm-up each.")] = 3,
    save: Annotated[
        str | None, typer.Option(help="A label to find the run by, or FILE.json to write.")
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(help="For sweep: streams, such as 1,2,4.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="For sweep: prompt and answer, such as 1K,16K,256K.")
    ] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit 8 below the recipe's floor or on a failure.")
    ] = False,
    floor: Annotated[
        float | None, typer.Option(min=0, help="Like --gate, against this many tok/s.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a deployment (or --url) and keep the record."""
    from sparkdeploy.bench import gate as gates
    from sparkdeploy.commands import bench as stage
    from sparkdeploy.settings import load_settings

    wanted = _wanted(suite or ["five"], rounds, save=save, concurrency=concurrency, context=context)
    settings = load_settings()
    is_gated = gate or floor is not None
    if is_gated:
        gates.require_gated_suite(wanted.suites)
    side = one_side(name, url)
    if url is not None:
        endpoint = stage.reach_url(url, model, key_file)
    else:
        endpoint = stage.reach_deployment(side, settings)
    held = gates.floor_of(endpoint.origin, floor) if is_gated else None
    finished = stage.measure_endpoint(endpoint, wanted, settings)
    _print_run(finished, as_json=as_json)
    stage.require_figures(finished)
    if held is not None:
        gates.require_gate(gates.gate_of(finished.run, *held))


def list_runs(as_json: JsonOption = False) -> None:
    """List the runs that were kept."""
    from sparkdeploy.bench.tables import list_lines
    from sparkdeploy.commands.bench import shelf_of
    from sparkdeploy.settings import load_settings

    kept, damaged = shelf_of(load_settings()).runs()
    for message in damaged:
        console.warn(message)
    if as_json:
        console.answer_json(
            [
                {
                    "run_id": item.run.run_id,
                    "label": item.run.label,
                    "started_at": item.run.started_at,
                    "suites": [suite.name for suite in item.run.suites],
                    "path": str(item.path),
                }
                for item in kept
            ]
        )
        return
    for line in list_lines(kept):
        console.answer(line)


def show_run(
    run: Annotated[str, typer.Argument(help="An id, a label (its newest run) or a file.")],
    as_json: JsonOption = False,
) -> None:
    """Show one run: what made it and what it measured."""
    from sparkdeploy.bench.record import record_text
    from sparkdeploy.bench.tables import run_lines
    from sparkdeploy.commands.bench import shelf_of
    from sparkdeploy.settings import load_settings

    found = shelf_of(load_settings()).find(run).run
    if as_json:
        console.answer_text(record_text(found))
        return
    for line in run_lines(found):
        console.answer(line)


def compare_runs(runs: RunsArgument, as_json: JsonOption = False) -> None:
    """Compare runs with the first one.

    Rounds are paired; each difference comes with its 95 % interval.
    """
    from sparkdeploy.bench.compare import compare
    from sparkdeploy.bench.tables import comparison_lines
    from sparkdeploy.commands.bench import shelf_of
    from sparkdeploy.errors import UsageError
    from sparkdeploy.settings import load_settings

    if len(runs) < 2:
        raise UsageError("compare needs two runs or more", hint="`sparkdeploy bench ls` lists them")
    shelf = shelf_of(load_settings())
    base, *others = [shelf.find(name).run for name in runs]
    comparisons = [compare(base, other) for other in others]
    if as_json:
        from dataclasses import asdict

        console.answer_json([asdict(item) for item in comparisons])
        return
    for comparison in comparisons:
        for line in comparison_lines(comparison):
            console.answer(line)


def _wanted(
    suites: list[str],
    rounds: int,
    *,
    save: str | None,
    concurrency: str | None,
    context: str | None,
) -> Wanted:
    from sparkdeploy.bench.suites import (
        SWEEP_CONCURRENCY,
        SWEEP_CONTEXT,
        parse_counts,
        parse_suites,
    )
    from sparkdeploy.commands.bench import Wanted

    is_file = save is not None and save.endswith(".json")
    return Wanted(
        suites=parse_suites(suites),
        rounds=rounds,
        label=None if is_file else save,
        concurrency=parse_counts(concurrency, "--concurrency")
        if concurrency
        else SWEEP_CONCURRENCY,
        context=parse_counts(context, "--context") if context else SWEEP_CONTEXT,
        file=Path(save) if is_file and save is not None else None,
    )


def _print_run(finished: Finished, *, as_json: bool) -> None:
    from sparkdeploy.bench.record import record_text
    from sparkdeploy.bench.tables import run_lines

    if as_json:
        console.answer_text(record_text(finished.run))
    else:
        for line in run_lines(finished.run):
            console.answer(line)
    console.info(f"kept in {finished.path}")
