"""`bench quality`, `bench needle` and `bench tools`: whether what is fast is also right."""

from __future__ import annotations

from dataclasses import asdict
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
from sparkdeploy.errors import BenchError, UsageError

if TYPE_CHECKING:
    from sparkdeploy.bench.quality.asking import Questions
    from sparkdeploy.commands.bench_quality import Access
    from sparkdeploy.settings import Settings


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the group `bench`."""
    app.command("quality")(quality)
    app.command("needle")(needle)
    app.command("tools")(tools)


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
) -> None:
    """Compare what two models think of every token of the same texts.

    With one side and --save it only captures, so that one machine can compare recipes one after
    the other.
    """
    from sparkdeploy.bench.quality import comparison as comparing
    from sparkdeploy.bench.quality import report
    from sparkdeploy.bench.quality.asking import Questions
    from sparkdeploy.commands.bench_quality import Access, capture_of
    from sparkdeploy.settings import load_settings

    asked = [*(sides or ()), *(url or ())]
    settings, questions = load_settings(), Questions(text_count=texts, max_tokens=tokens)
    access = Access(key_file, model)
    if save is not None:
        _capture(asked, save, questions, settings, access)
        return
    if len(asked) != 2:
        raise UsageError(
            f"a comparison has two sides, and {len(asked)} came",
            hint="`bench quality A B`, or capture one with `bench quality A --save FILE.json`",
        )
    first, second = (capture_of(side, questions, settings, access) for side in asked)
    comparison = comparing.compare(first, second)
    thresholds = comparing.Thresholds(
        min_top1_agreement=min_agreement,
        max_mean_kl_nats=max_kl,
        max_perplexity_rise=max_perplexity_rise,
        max_drift_nats=float("inf") if max_drift is None else max_drift,
    )
    failed = tuple(comparing.failures(comparison, thresholds)) if gate else None
    if as_json:
        console.answer_json(report.comparison_as_dict(comparison, failed))
    else:
        for line in report.comparison_lines(comparison, failed):
            console.answer(line)
    if failed:
        raise BenchError(f"{second.label} is not close enough to {first.label}: {failed[0]}")


def needle(
    name: NameArgument = None,
    url: UrlOption = None,
    model: ModelOption = None,
    key_file: KeyFileOption = None,
    lengths: Annotated[
        str, typer.Option(help="Prompt lengths in tokens, with commas; K is 1024.")
    ] = "1K,4K,16K,64K,128K,256K",
    gate: Annotated[bool, typer.Option("--gate", help="Exit 8 when one was not found.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Hide a sentence in long texts and see whether the model finds it."""
    from sparkdeploy.bench.quality.needle import needle_lines
    from sparkdeploy.bench.suites import parse_counts
    from sparkdeploy.commands.bench_quality import Access, search_needles
    from sparkdeploy.settings import load_settings

    side, access = one_side(name, url), Access(key_file, model)
    found = search_needles(side, parse_counts(lengths, "--lengths"), load_settings(), access)
    if as_json:
        console.answer_json([asdict(item) for item in found])
    else:
        for line in needle_lines(found):
            console.answer(line)
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
) -> None:
    """See whether tool calls come out of the parser as calls."""
    from sparkdeploy.bench.quality.tool_calls import tool_lines
    from sparkdeploy.commands.bench_quality import Access, try_tools
    from sparkdeploy.settings import load_settings

    results = try_tools(one_side(name, url), load_settings(), Access(key_file, model))
    if as_json:
        console.answer_json([asdict(item) for item in results])
    else:
        for line in tool_lines(results):
            console.answer(line)
    wrong = sum(bool(item.problem) for item in results)
    if gate and wrong:
        raise BenchError(f"{wrong} of {len(results)} tool calls went wrong")


def _capture(
    asked: list[str], save: Path, questions: Questions, settings: Settings, access: Access
) -> None:
    from sparkdeploy.bench.quality.capture import write_capture
    from sparkdeploy.commands.bench_quality import capture_of

    if len(asked) > 1:
        raise UsageError("--save captures one side", hint="capture the other into a second file")
    if save.suffix != ".json":
        raise UsageError(f"--save {save}: a capture's name ends in .json")
    write_capture(capture_of(asked[0] if asked else "main", questions, settings, access), save)
    console.info(f"wrote {save}; compare it with `sparkdeploy bench quality {save} OTHER`")
