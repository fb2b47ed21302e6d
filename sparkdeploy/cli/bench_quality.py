"""`bench quality` and its like: what a model says, not how fast; and `bench campaign`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from functools import partial
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
from sparkdeploy.cli.options import (
    JsonOption,
    KnownBadOption,
    NameOption,
    SetOption,
    UnsafeOption,
    YesOption,
    answer,
    current_settings,
    overrides,
)
from sparkdeploy.errors import BenchError, UsageError
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkdeploy.bench.campaign.folder import Campaign
    from sparkdeploy.bench.quality.capture import Capture
    from sparkdeploy.bench.quality.comparison import Thresholds
    from sparkdeploy.settings import Settings


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
    from sparkdeploy.bench.endpoint import Access
    from sparkdeploy.bench.quality.capture import capture_of
    from sparkdeploy.bench.quality.comparison import Thresholds

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
    compared = _compared(asked, ask)
    _tell(compared, thresholds, settings, is_gated=gate, as_json=as_json)


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
) -> None:
    """Hide a sentence in long texts; does the model find it?"""
    from sparkdeploy.bench.endpoint import Access
    from sparkdeploy.bench.quality.probes import needle_lines, search_needles
    from sparkdeploy.bench.suites import parse_counts

    side, access = one_side(name, url, "bench needle"), Access(key_file, model)
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
) -> None:
    """See whether tool calls come out of the parser as calls."""
    from sparkdeploy.bench.endpoint import Access
    from sparkdeploy.bench.quality.probes import tool_lines, try_tools

    results = try_tools(
        one_side(name, url, "bench tools"), current_settings(), Access(key_file, model)
    )
    answer(tool_lines(results), [asdict(item) for item in results], as_json=as_json)
    wrong = sum(bool(item.problem) for item in results)
    if gate and wrong:
        raise BenchError(f"{wrong} of {len(results)} tool calls went wrong")


def _capture(asked: list[str], ask: Callable[[str], Capture], save: Path) -> None:
    from sparkdeploy.bench.quality.capture import write_capture
    from sparkdeploy.deploy.nodes import resolve_name

    if len(asked) > 1:
        raise UsageError("--save captures one side", hint="capture the other into a second file")
    if save.suffix != ".json":
        raise UsageError(f"--save {save}: a capture's name ends in .json")
    typed = ("bench", "quality", "--save", str(save))
    side = resolve_name(asked[0] if asked else None, typed)
    write_capture(ask(side), save)
    console.info(
        f"wrote {save}; compare it with `sparkdeploy bench quality {shlex.quote(str(save))} OTHER`"
    )


def _compared(asked: list[str], ask: Callable[[str], Capture]) -> tuple[Capture, Capture]:
    if len(asked) != 2:
        raise UsageError(
            f"a comparison has two sides, and {len(asked)} came",
            hint="`bench quality A B`, or capture one with `bench quality A --save FILE.json`",
        )
    first, second = map(ask, asked)
    return first, second


def _tell(
    captures: tuple[Capture, Capture],
    thresholds: Thresholds,
    settings: Settings,
    *,
    is_gated: bool,
    as_json: bool,
) -> None:
    from sparkdeploy.bench.quality.comparison import (
        compare,
        comparison_as_dict,
        comparison_lines,
        failures,
        judged,
        keep,
    )
    from sparkdeploy.bench.run import quality_folder

    first, second = captures
    figures = compare(first, second)
    failed = tuple(failures(figures, thresholds)) if is_gated else None
    lines = comparison_lines(figures, second.label, failed)
    answer(lines, comparison_as_dict(figures, second.label, failed), as_json=as_json)
    taken_at = max(first.taken_at, second.taken_at)
    result = judged(figures, first.served, second.served, taken_at, thresholds)
    console.detail(f"kept for reports in {keep(result, quality_folder(settings))}")
    if failed:
        raise BenchError(f"{second.label} is not close enough to {first.label}: {failed[0]}")


BASELINE = "baseline"


def campaign(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names or files; baseline and the configured default when left out.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One round, one prompt a suite, two texts, one needle."),
    ] = False,
    assignments: SetOption = None,
    name: NameOption = "main",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the campaign that is not over.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="End it, and put back what served before.")
    ] = False,
    known_bad: KnownBadOption = False,
    unsafe: UnsafeOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Serve and measure recipes one after the other, to one page.

    The same command again goes on where it was. What served before is put back at the end.
    """
    from sparkdeploy.bench.campaign import run as stage
    from sparkdeploy.node.container import refuse_no_name

    settings = current_settings()
    consent = (lambda _question: True) if yes else console.confirm
    assignments = overrides(assignments, known_bad=known_bad, unsafe=unsafe)
    if resume or stop:
        if recipes or assignments or quick or (resume and stop):
            raise UsageError("--resume and --stop take the campaign as it was begun, one of them")
        _print_campaign(
            stage.run_campaign(None, settings, consent, is_stopped=stop), as_json=as_json
        )
        return
    refuse_no_name(name)
    wanted = stage.WantedCampaign(
        recipes=_from_anywhere(recipes, settings),
        assignments=tuple(assignments),
        deployment=name,
        is_quick=quick,
    )
    _print_campaign(stage.run_campaign(wanted, settings, consent), as_json=as_json)


def _from_anywhere(recipes: list[str] | None, settings: Settings) -> tuple[str, ...]:
    from sparkdeploy.deploy.request import from_anywhere
    from sparkdeploy.recipe.library import default_recipe

    wanted = recipes or [BASELINE, default_recipe(settings)]
    return tuple(dict.fromkeys(from_anywhere(recipe, settings) for recipe in wanted))


def _print_campaign(campaign: Campaign, *, as_json: bool) -> None:
    from sparkdeploy.bench.campaign.folder import read_bundle
    from sparkdeploy.bench.campaign.report import failed_steps, step_lines

    bundle = read_bundle(campaign.bundle)
    failed = {recipe.name: failed_steps(recipe) for recipe in bundle.recipes}
    failed = {name: words for name, words in failed.items() if words}
    lines = [
        *step_lines(bundle.recipes),
        f"report: {campaign.report}",
        f"bundle: {campaign.bundle}; it holds no key, no address and no name of yours: post it",
    ]
    content = {"report": str(campaign.report), "bundle": str(campaign.bundle), "failed": failed}
    answer(lines, content, as_json=as_json)
    if failed:
        first, words = next(iter(failed.items()))
        raise BenchError(
            f"{len(failed)} of {len(bundle.recipes)} recipes did not get through; "
            f"{first}: {words[0]}",
            hint=f"what was measured: {campaign.report}",
        )
