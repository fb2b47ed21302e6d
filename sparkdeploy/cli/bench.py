"""`bench`: whether a served model is as fast, and as good, as its recipe says."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from sparkdeploy.cli import bench_quality as asking
from sparkdeploy.cli.bench_campaign import campaign
from sparkdeploy.cli.bench_measure import load, pair, print_finished, print_run
from sparkdeploy.cli.bench_options import (
    SWEPT_CONCURRENCY,
    SWEPT_CONTEXT,
    CaFileOption,
    ConcurrencyOption,
    ContextOption,
    KeyFileOption,
    ModelOption,
    NameArgument,
    RoundsOption,
    SaveOption,
    SuiteOption,
    UrlOption,
    one_side,
)
from sparkdeploy.cli.names import completing
from sparkdeploy.cli.names import runs as kept_names
from sparkdeploy.cli.options import JsonOption, current_settings
from sparkdeploy.cli.printing import answer
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.terminal.console import console

MEASURE = "run"


class _MeasuresByDefault(TyperGroup):
    """`bench [NAME]` measures; `bench ls` and its like are known by their names."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:  # type: ignore[no-untyped-def]  # noqa: ANN001 - typer's own
        if ctx.resilient_parsing and not args:
            return super().parse_args(ctx, args)
        if not args or (args[0] not in self.commands and args[0] not in {"--help", "-h"}):
            args = [MEASURE, *args]
        return super().parse_args(ctx, args)


group = typer.Typer(
    cls=_MeasuresByDefault,
    help="Measure and compare what is served. `bench [NAME]` is short for `bench run [NAME]`.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def measure(
    name: NameArgument = None,
    url: UrlOption = None,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    ca_file: CaFileOption = None,
    suite: SuiteOption = None,
    rounds: RoundsOption = 3,
    save: SaveOption = None,
    concurrency: ConcurrencyOption = SWEPT_CONCURRENCY,
    context: ContextOption = SWEPT_CONTEXT,
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit 8 below the recipe's floor or on a failure.")
    ] = False,
    floor: Annotated[
        float | None, typer.Option(min=0, help="Like --gate, against this many tok/s.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a deployment (or --url) and keep the record."""
    from sparkdeploy.bench import endpoint as there
    from sparkdeploy.bench import run as stage
    from sparkdeploy.bench.suites import parse_counts, parse_suites

    wanted = stage.WantedRun(
        suites=parse_suites(suite or ["five"]),
        rounds=rounds,
        concurrency=parse_counts(concurrency, "--concurrency"),
        context=parse_counts(context, "--context"),
        save=save,
    )
    settings = current_settings()
    is_gated = gate or floor is not None
    if is_gated:
        stage.require_gated_suite(wanted.suites)
    side = one_side(name, url, "bench")
    if url is None:
        _refuse_misspelt(side)
    if url is not None:
        endpoint = there.reach_url(url, there.Access(key_file, model, ca_file))
    else:
        endpoint = there.reach_deployment(side, settings)
    held = stage.floor_of(endpoint.origin, floor) if is_gated else None
    finished = stage.measure_endpoint(endpoint, wanted, settings)
    print_finished(finished, as_json=as_json)
    if held is not None:
        stage.require_gate(finished.run, *held)


def _refuse_misspelt(name: str) -> None:
    """Raise UsageError for what is no deployment, and almost one of the commands beside this."""
    from sparkdeploy.deploy.nodes import require_name

    commands = (command.name or "" for command in group.registered_commands)
    for meant in difflib.get_close_matches(name, commands, n=1):
        try:
            require_name(name)
        except NodeError as error:
            command = f"sparkdeploy bench {meant}"
            raise UsageError(error.message, hint=f"did you mean `{command}`?") from error


def list_runs(as_json: JsonOption = False) -> None:
    """List the runs that were kept."""
    from sparkdeploy.bench.run import kept_runs
    from sparkdeploy.bench.tables import list_lines

    kept = kept_runs(current_settings())
    content = [
        {
            "run_id": item.run.run_id,
            "label": item.run.label,
            "started_at": item.run.started_at,
            "suites": [suite.name for suite in item.run.suites],
            "path": str(item.path),
        }
        for item in kept
    ]
    answer(list_lines(kept), content, as_json=as_json)


def show_run(
    run: Annotated[
        str,
        typer.Argument(
            help="An id, a label (its newest run) or a file.", autocompletion=completing(kept_names)
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show one run: what made it and what it measured."""
    from sparkdeploy.bench.run import run_store

    print_run(run_store(current_settings()).find(run).run, as_json=as_json)


def compare_runs(
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="A B",
            help="Labels (all their runs), ids or files.",
            autocompletion=completing(kept_names),
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Compare the runs of labels with those of the first one.

    Each difference comes with its 95 % interval, by how much runs of the same differ.
    """
    from sparkdeploy.bench.run import compare_sides
    from sparkdeploy.bench.tables import comparison_lines

    if len(sides) < 2:
        raise UsageError("compare needs two runs or more", hint="`sparkdeploy bench ls` lists them")
    comparisons = compare_sides(sides, current_settings())
    lines = (line for comparison in comparisons for line in comparison_lines(comparison))
    answer(lines, [asdict(item) for item in comparisons], as_json=as_json)


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Ids, labels or files; the newest of each label when left out."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one HTML page about runs, to share.

    It has charts, the table of each, and published figures beside them.
    """
    from sparkdeploy.bench.run import write_report

    count = write_report(runs or (), output, current_settings())
    console.answer(f"wrote {output}: {count} run{'' if count == 1 else 's'}")


group.command(MEASURE)(measure)
group.command("load")(load)
group.command("pair")(pair)
group.command("campaign")(campaign)
group.command("ls")(list_runs)
group.command("show")(show_run)
group.command("compare")(compare_runs)
group.command("quality")(asking.quality)
group.command("needle")(asking.needle)
group.command("tools")(asking.tools)
group.command("report")(report)
