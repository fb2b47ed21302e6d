"""`bench`: whether a served model is as fast, and as good, as its recipe says."""

from __future__ import annotations

import difflib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from sparkdeploy.cli import bench_quality as asking
from sparkdeploy.cli.bench_options import (
    SWEPT_CONCURRENCY,
    SWEPT_CONTEXT,
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
from sparkdeploy.cli.bench_quality import campaign
from sparkdeploy.cli.names import completing
from sparkdeploy.cli.names import runs as kept_names
from sparkdeploy.cli.options import JsonOption, answer, current_settings
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from sparkdeploy.bench.record import Run
    from sparkdeploy.bench.run import Finished, WantedRun

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

    wanted = _wanted(suite, rounds, concurrency, context, save)
    settings = current_settings()
    is_gated = gate or floor is not None
    if is_gated:
        stage.require_gated_suite(wanted.suites)
    side = one_side(name, url, "bench")
    if url is None:
        _refuse_misspelt(side)
    endpoint = there.reach(side, settings, there.Access(key_file, model))
    held = stage.floor_of(endpoint.origin, floor) if is_gated else None
    finished = stage.measure_endpoint(endpoint, wanted, settings)
    print_finished(finished, as_json=as_json)
    if held is not None:
        stage.require_gate(finished.run, *held)


def _wanted(
    suite: list[str] | None, rounds: int, concurrency: str, context: str, save: str | None = None
) -> WantedRun:
    from sparkdeploy.bench.run import WantedRun
    from sparkdeploy.bench.suites import parse_counts, parse_suites

    return WantedRun(
        suites=parse_suites(suite or ["five"]),
        rounds=rounds,
        concurrency=parse_counts(concurrency, "--concurrency"),
        context=parse_counts(context, "--context"),
        save=save,
    )


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


def load(
    name: NameArgument = None,
    rate: Annotated[
        str,
        typer.Option(
            help="Requests a second: 2; 0.5,1,2 (with --slo also between); or auto with --slo."
        ),
    ] = "1",
    duration: Annotated[str, typer.Option(help="How long requests are sent.")] = "60s",
    requests: Annotated[
        int | None, typer.Option(min=1, help="At each rate, in place of --duration.")
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(help="Limits of a good request: ttft, tpot, e2e, such as ttft=2s,tpot=100ms."),
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Of requests within --slo, for a rate to hold.")
    ] = 0.95,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send requests as users do, by vLLM's own tool.

    Nobody waits for the others. `vllm bench serve` asks from within the deployment's container.
    """
    from sparkdeploy.bench import endpoint as there
    from sparkdeploy.bench.load import load_plan, parse_span
    from sparkdeploy.bench.run import WantedRun, measure_endpoint
    from sparkdeploy.bench.suites import SuiteName

    plan = load_plan(rate, parse_span(duration, "--duration"), requests, slo=slo, share=share)
    settings = current_settings()
    endpoint = there.reach_deployment(one_side(name, None, "bench load"), settings)
    wanted = WantedRun((SuiteName.LOAD,), 1, (), (), save, load=plan)
    print_finished(measure_endpoint(endpoint, wanted, settings), as_json=as_json)


def pair(
    sides: Annotated[
        tuple[str, str], typer.Argument(metavar="A B", help="Deployments or addresses.")
    ],
    runs: Annotated[int, typer.Option(min=2, help="Of each side, in turns.")] = 3,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    suite: SuiteOption = None,
    rounds: RoundsOption = 3,
    concurrency: ConcurrencyOption = SWEPT_CONCURRENCY,
    context: ContextOption = SWEPT_CONTEXT,
    as_json: JsonOption = False,
) -> None:
    """Measure two servers in turns and compare them. A B B A and so on; every run is kept."""
    from sparkdeploy.bench.endpoint import Access
    from sparkdeploy.bench.run import ONE_START, measure_in_turns
    from sparkdeploy.bench.tables import comparison_lines

    wanted = _wanted(suite, rounds, concurrency, context)
    access = Access(key_file, model)
    found = measure_in_turns(sides, wanted, runs, current_settings(), access)
    answer(comparison_lines(found), asdict(found), as_json=as_json)
    console.info(ONE_START)


def print_run(run: Run, *, as_json: bool) -> None:
    from sparkdeploy.bench.files import record_text
    from sparkdeploy.bench.tables import run_lines
    from sparkdeploy.bench.watch import drafted_in
    from sparkdeploy.server.metrics import low_acceptance_warning

    if remark := low_acceptance_warning(drafted_in(run)):
        console.warn(remark)
    if as_json:
        console.answer_text(record_text(run))
        return
    console.answer_blocks(run_lines(run))


def print_finished(finished: Finished, *, as_json: bool) -> None:
    """Print what was measured and where it is kept, then raise what ended it."""
    from sparkdeploy.bench.run import require_figures

    print_run(finished.run, as_json=as_json)
    if finished.lost is None:
        console.info(f"kept in {finished.path}")
    require_figures(finished)


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
