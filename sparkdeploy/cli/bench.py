"""`bench`: whether a served model is as fast, and as good, as its recipe says."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from sparkdeploy.cli.options import JsonOption, OnOption, current_settings
from sparkdeploy.cli.printing import answer
from sparkdeploy.console import console
from sparkdeploy.errors import BenchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkdeploy.bench.quality.capture import Capture
    from sparkdeploy.bench.quality.comparison import Thresholds
    from sparkdeploy.bench.record import Run

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="The deployment's name; main when left out.")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", help="Any OpenAI-compatible server instead of a deployment.")
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="With a URL: the served name; the first one when left out."),
]
KeyFileOption = Annotated[
    Path | None, typer.Option("--key-file", help="With a URL: a file with the API key.")
]
MEASURE = "run"


class _MeasuresByDefault(TyperGroup):
    """`bench [NAME]` measures; `bench ls` and its like are known by their names."""

    def parse_args(self, ctx, args: list[str]) -> list[str]:  # type: ignore[no-untyped-def]  # noqa: ANN001 - typer's own
        if not args or (args[0] not in self.commands and args[0] not in {"--help", "-h"}):
            args = [MEASURE, *args]
        return super().parse_args(ctx, args)


group = typer.Typer(
    cls=_MeasuresByDefault,
    help="Measure and compare what is served; `bench [NAME]` is short for `bench run [NAME]`.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def register(app: typer.Typer) -> None:
    group.command(MEASURE)(measure)
    group.command("ls")(list_runs)
    group.command("import")(import_runs)
    group.command("show")(show_run)
    group.command("compare")(compare_runs)
    group.command("quality")(quality)
    group.command("needle")(needle)
    group.command("tools")(tools)
    group.command("pooling")(pooling)
    group.command("report")(report)
    app.add_typer(group, name="bench")


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
        str, typer.Option(help="For sweep: streams, with commas.")
    ] = "1,2,4,8,16,32",
    context: Annotated[
        str, typer.Option(help="For sweep: prompt and answer in tokens; K is 1024.")
    ] = "1K,2K,4K,8K,16K,32K,64K,128K,256K",
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit 8 below the recipe's floor or on a failure.")
    ] = False,
    floor: Annotated[
        float | None, typer.Option(min=0, help="Like --gate, against this many tok/s.")
    ] = None,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Measure a deployment (or --url) and keep the record."""
    from sparkdeploy.bench import compare as gates
    from sparkdeploy.bench.suites import parse_counts, parse_suites
    from sparkdeploy.commands.bench import run as stage

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
        gates.require_gated_suite(wanted.suites)
    side = _one_side(name, url)
    if url is not None:
        endpoint = stage.reach_url(url, stage.Access(key_file, model))
    else:
        endpoint = stage.reach_deployment(side, settings)
    held = gates.floor_of(endpoint.origin, floor) if is_gated else None
    finished = stage.measure_endpoint(endpoint, wanted, settings)
    _print_run(finished.run, as_json=as_json)
    console.info(f"kept in {finished.path}")
    stage.require_figures(finished)
    if held is not None:
        gates.require_gate(finished.run, *held)


def list_runs(as_json: JsonOption = False, _on: OnOption = None) -> None:
    """List the runs that were kept."""
    from sparkdeploy.bench.tables import list_lines
    from sparkdeploy.commands.bench.run import kept_runs

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


def import_runs(
    files: Annotated[list[Path], typer.Argument(help="Records of others, as `bench` writes them.")],
    as_json: JsonOption = False,
) -> None:
    """Keep records of others: `plan --hardware` fits its speeds to those of such a machine."""
    from sparkdeploy.bench.files import import_record
    from sparkdeploy.commands.bench.run import shelf_of

    shelf = shelf_of(current_settings())
    kept = [import_record(path, shelf) for path in files]
    lines = [f"kept {item.run.run_id} in {item.path}" for item in kept]
    content = [{"run_id": item.run.run_id, "path": str(item.path)} for item in kept]
    answer(lines, content, as_json=as_json)


def show_run(
    run: Annotated[str, typer.Argument(help="An id, a label (its newest run) or a file.")],
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Show one run: what made it and what it measured."""
    from sparkdeploy.commands.bench.run import shelf_of

    _print_run(shelf_of(current_settings()).find(run).run, as_json=as_json)


def compare_runs(
    runs: Annotated[
        list[str], typer.Argument(help="Runs: an id, a label (its newest run) or a file.")
    ],
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Compare runs with the first one.

    Rounds are paired; each difference comes with its 95 % interval.
    """
    from sparkdeploy.bench.compare import compare
    from sparkdeploy.bench.tables import comparison_lines
    from sparkdeploy.commands.bench.run import shelf_of

    if len(runs) < 2:
        raise UsageError("compare needs two runs or more", hint="`sparkdeploy bench ls` lists them")
    shelf = shelf_of(current_settings())
    base, *others = [shelf.find(name).run for name in runs]
    comparisons = [compare(base, other) for other in others]
    lines = (line for comparison in comparisons for line in comparison_lines(comparison))
    answer(lines, [asdict(item) for item in comparisons], as_json=as_json)


def quality(
    sides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[A] [B]",
            help="The truth and what is held against it: deployments' names, captures or URLs.",
        ),
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", help="A server, as if it stood among the sides; may be repeated."),
    ] = None,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    save: Annotated[
        Path | None, typer.Option(help="Capture one side into a .json file and compare later.")
    ] = None,
    texts: Annotated[int, typer.Option(min=1, max=12, help="Ask the first N texts only.")] = 12,
    tokens: Annotated[int, typer.Option(min=1, help="Go on from each text for N tokens.")] = 64,
    gate: Annotated[bool, typer.Option("--gate", help="Exit 8 beyond the limits below.")] = False,
    min_agreement: Annotated[
        float, typer.Option(min=0, max=1, help="Of the likeliest token, as a share.")
    ] = 0.97,
    max_kl: Annotated[float, typer.Option(min=0, help="Mean KL divergence in nats.")] = 0.01,
    max_perplexity_rise: Annotated[float, typer.Option(help="0.01 is one per cent.")] = 0.01,
    max_drift: Annotated[
        float | None,
        typer.Option(min=0, help="Mean |change of ln p| in nats; not judged if unset."),
    ] = None,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Compare what two models think of every token of the same texts.

    With one side and --save it only captures, so that one machine can compare recipes one after
    the other.
    """
    from sparkdeploy.bench.quality.comparison import Thresholds
    from sparkdeploy.commands.bench.run import Access, capture_of

    settings, access = current_settings(), Access(key_file, model)
    ask = partial(capture_of, count=texts, tokens=tokens, settings=settings, access=access)
    asked = [*(sides or ()), *(url or ())]
    if save is not None:
        _capture(asked, ask, save)
        return
    thresholds = Thresholds(
        min_top1_agreement=min_agreement,
        max_mean_kl_nats=max_kl,
        max_perplexity_rise=max_perplexity_rise,
        max_drift_nats=float("inf") if max_drift is None else max_drift,
    )
    _compare(asked, ask, thresholds if gate else None, as_json=as_json)


def needle(
    name: NameArgument = None,
    url: UrlOption = None,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    lengths: Annotated[
        str, typer.Option(help="Prompt lengths in tokens, with commas; K is 1024.")
    ] = "1K,4K,16K,64K,128K,256K",
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit 8 when a needle was not found.")
    ] = False,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Hide a sentence in long texts and see whether the model finds it."""
    from sparkdeploy.bench.quality.needle import needle_lines
    from sparkdeploy.bench.suites import parse_counts
    from sparkdeploy.commands.bench.run import Access, search_needles

    side, access = _one_side(name, url), Access(key_file, model)
    found = search_needles(side, parse_counts(lengths, "--lengths"), current_settings(), access)
    answer(needle_lines(found), [asdict(item) for item in found], as_json=as_json)
    missed = sum(not item.is_found for item in found)
    if gate and missed:
        raise BenchError(f"{missed} of {len(found)} needles were not found")


def tools(
    name: NameArgument = None,
    url: UrlOption = None,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    gate: Annotated[bool, typer.Option("--gate", help="Exit 8 when a call went wrong.")] = False,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """See whether tool calls come out of the parser as calls."""
    from sparkdeploy.bench.quality.tool_calls import tool_lines
    from sparkdeploy.commands.bench.run import Access, try_tools

    results = try_tools(_one_side(name, url), current_settings(), Access(key_file, model))
    answer(tool_lines(results), [asdict(item) for item in results], as_json=as_json)
    wrong = sum(bool(item.problem) for item in results)
    if gate and wrong:
        raise BenchError(f"{wrong} of {len(results)} tool calls went wrong")


def pooling(
    name: NameArgument = None,
    url: UrlOption = None,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    concurrency: Annotated[
        str, typer.Option(help="How many requests at once, with commas.")
    ] = "1,4,16",
    requests: Annotated[int, typer.Option(help="For each of them.", min=1)] = 64,
    as_json: JsonOption = False,
    _on: OnOption = None,
) -> None:
    """Measure a model for embeddings, scores or classes on its own route."""
    from sparkdeploy.bench.pooling import pooling_lines
    from sparkdeploy.bench.suites import parse_counts
    from sparkdeploy.commands.bench.run import Access, bench_pooling

    side, access = _one_side(name, url), Access(key_file, model)
    counts = parse_counts(concurrency, "--concurrency")
    figures = bench_pooling(side, counts, requests, current_settings(), access)
    answer(pooling_lines(figures), [asdict(item) for item in figures], as_json=as_json)


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
    from sparkdeploy.commands.bench.run import write_report

    count = write_report(runs or (), output, current_settings())
    console.answer(f"wrote {output}: {count} run{'' if count == 1 else 's'}")


def _one_side(name: str | None, url: str | None) -> str:
    if name and url:
        raise UsageError("give a deployment's name or --url, not both")
    return url or name or "main"


def _print_run(run: Run, *, as_json: bool) -> None:
    from sparkdeploy.bench.files import record_text
    from sparkdeploy.bench.tables import run_lines
    from sparkdeploy.bench.watch import drafted_in
    from sparkdeploy.server.drafting import poor_drafter

    if remark := poor_drafter(drafted_in(run)):
        console.warn(remark)
    if as_json:
        console.answer_text(record_text(run))
        return
    for line in run_lines(run):
        console.answer(line)


def _capture(asked: list[str], ask: Callable[[str], Capture], save: Path) -> None:
    from sparkdeploy.bench.quality.capture import write_capture

    if len(asked) > 1:
        raise UsageError("--save captures one side", hint="capture the other into a second file")
    if save.suffix != ".json":
        raise UsageError(f"--save {save}: a capture's name ends in .json")
    write_capture(ask(asked[0] if asked else "main"), save)
    console.info(f"wrote {save}; compare it with `sparkdeploy bench quality {save} OTHER`")


def _compare(
    asked: list[str], ask: Callable[[str], Capture], thresholds: Thresholds | None, *, as_json: bool
) -> None:
    from sparkdeploy.bench.quality.comparison import (
        compare,
        comparison_as_dict,
        comparison_lines,
        failures,
    )

    if len(asked) != 2:
        raise UsageError(
            f"a comparison has two sides, and {len(asked)} came",
            hint="`bench quality A B`, or capture one with `bench quality A --save FILE.json`",
        )
    first, second = map(ask, asked)
    comparison = compare(first, second)
    failed = tuple(failures(comparison, thresholds)) if thresholds is not None else None
    lines = comparison_lines(comparison, failed)
    answer(lines, comparison_as_dict(comparison, failed), as_json=as_json)
    if failed:
        raise BenchError(f"{second.label} is not close enough to {first.label}: {failed[0]}")
