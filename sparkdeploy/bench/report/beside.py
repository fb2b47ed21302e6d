"""Our figures beside published ones: one row each, with the method and the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.report.chart import plottable
from sparkdeploy.bench.report.section import Section, Table, figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.bench.report.published import Field, Published
    from sparkdeploy.bench.report.section import Shown

SPARK = "DGX Spark"
OTHERS = "The published figures are other people's, taken on one DGX Spark."
FIGURES = {"end_to_end_tok_s": "end to end", "stream_decode_tok_s": "decode only"}


def published_section(runs: Sequence[Shown], field: Field) -> Section:
    """Every published figure of the runs' recipes, and what others reached with other set-ups."""
    rows = [row for shown in runs for row in _rows(shown, field)]
    if not rows:
        return _others_section(field)
    others = [("-", what, "-", tok_s, "-", said) for what, tok_s, said in _others(field)]
    elsewhere = [shown.name for shown in runs if not _on_a_spark(shown)]
    notes = [OTHERS]
    if elsewhere:
        names = ", ".join(elsewhere)
        notes.append(f"Not taken on a DGX Spark, so the difference says little: {names}.")
    columns = ("run", "what", "here", "published", "difference", "method and source")
    return Section(
        anchor="published",
        heading="Beside published figures",
        explanation=(
            "Here: the mean over the prompt classes for which there is a published figure, in "
            "tokens a second for one request. Prompts differ in their words; the classes and the "
            "lengths are the same."
        ),
        charts=(),
        table=Table(columns, (*rows, *others)),
        notes=tuple(notes),
    )


def _others_section(field: Field) -> Section:
    columns = ("what", "published", "method and source")
    return Section(
        anchor="published",
        heading="Published figures",
        explanation=(
            "No published figure of these runs' recipes is known. These are of other set-ups, in "
            "tokens a second for one request."
        ),
        charts=(),
        table=Table(columns, tuple(_others(field)), text_columns=1),
        notes=(OTHERS,),
    )


def _others(field: Field) -> Iterator[tuple[str, str, str]]:
    for other in field.others:
        yield other.what, figure(other.tok_s), f"{other.method}; {other.source}"


def _rows(shown: Shown, field: Field) -> Iterator[tuple[str, ...]]:
    for item in field.published:
        if item.recipe == shown.recipe:
            here = _here(shown, item)
            what = f"{item.recipe}, {FIGURES.get(item.figure, item.figure)} ({item.label})"
            said = f"{item.method}; {item.hardware}; {item.source}"
            yield (
                shown.name,
                what,
                figure(here),
                figure(item.mean),
                _difference(here, item.mean),
                said,
            )


def _here(shown: Shown, item: Published) -> float | None:
    suite = shown.run.suite(item.suite)
    means = [
        cell.statistics[item.figure].mean
        for cell in (suite.cells if suite is not None else ())
        if cell.concurrency == 1
        and item.figure in cell.statistics
        and (not item.prompts or cell.prompt in item.prompts)
    ]
    # A class that is missing or damaged would make the mean one of something else.
    if not means or len(means) < len(item.prompts) or not all(map(plottable, means)):
        return None
    return sum(means) / len(means)


def _difference(here: float | None, published: float) -> str:
    return f"{here / published - 1:+.0%}" if here is not None and published > 0 else "-"


def _on_a_spark(shown: Shown) -> bool:
    machine = shown.run.origin.machine
    return machine is not None and SPARK in machine.product
