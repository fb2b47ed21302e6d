"""Accepted drafts by position: how far a drafter's guesses reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.report.chart import (
    Line,
    LineChart,
    Point,
    Scale,
    figure,
    heading_of,
    plottable,
    section_of,
    title_of,
)
from sparkdeploy.bench.report.table import Table, across, run_columns
from sparkdeploy.bench.watch import together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sparkdeploy.bench.record import Cell, ServerDelta
    from sparkdeploy.bench.report.chart import Section, ShownRun
    from sparkdeploy.bench.report.table import RowGroup

    Drafting = list[tuple[Cell, ServerDelta]]

MOST_POSITIONS = 32
"""More than any drafter of this field; a damaged record may say anything."""


def acceptance_section(runs: Sequence[ShownRun]) -> Section | None:
    drafting = [(shown, cells) for shown in runs if (cells := _drafting(shown))]
    rates = [_rates(cells) for _, cells in drafting]
    lines = tuple(
        Line(shown.name, tuple(Point(at, rate) for at, rate in own.items()), shown.series)
        for (shown, _), own in zip(drafting, rates, strict=True)
        if own
    )
    if not lines:
        return None
    heading = heading_of("acceptance")
    chart = LineChart(heading, "position of the draft", "% taken", lines, Scale.LINEAR)
    groups = (
        across("% taken, over all prompts", rates, "position {:g}".format, figure),
        *_by_prompt([cells for _, cells in drafting]),
    )
    columns = run_columns(shown for shown, _ in drafting)
    return section_of("acceptance", (chart,), Table(heading, "condition", columns, groups))


def _rates(cells: Drafting) -> dict[float, float]:
    """By position from 1, in per cent; each cell is weighted by its steps."""
    summed = together((delta for _, delta in cells), kv_usage_peak=None)
    rates = summed.acceptance_per_position[:MOST_POSITIONS] if summed is not None else ()
    return {float(at): 100 * rate for at, rate in enumerate(rates, 1) if plottable(rate)}


def _by_prompt(drafting: Sequence[Drafting]) -> tuple[RowGroup, ...]:
    told = [{_condition(cell): delta for cell, delta in cells} for cells in drafting]

    def group(title: str, say: Callable[[ServerDelta], str]) -> RowGroup:
        return across(title, told, str, say)

    return (
        group("tokens a step", lambda delta: figure(delta.mean_acceptance_length, 2)),
        group("% of drafts taken", lambda delta: figure(_percent(delta.acceptance))),
    )


def _percent(share: float | None) -> float | None:
    return 100 * share if share is not None else None


def _condition(cell: Cell) -> str:
    name = title_of("prompts", cell.prompt)
    context = f", {cell.context_tokens:,} tokens" if cell.context_tokens else ""
    streams = f", {cell.concurrency} at once" if cell.concurrency > 1 else ""
    return f"{name}{context}{streams}"


def _drafting(shown: ShownRun) -> Drafting:
    """A sweep's prompts are made to fill a context; they count only where there are no others."""
    return _drafted(shown, "five") + _drafted(shown, "decode") or _drafted(shown, "sweep")


def _drafted(shown: ShownRun, suite: str) -> Drafting:
    found = ((cell, cell.server) for cell in shown.cells(suite))
    return [(cell, delta) for cell, delta in found if delta is not None and _has_drafted(delta)]


def _has_drafted(delta: ServerDelta) -> bool:
    counters = (delta.draft_tokens or 0, delta.accepted_tokens or 0, *delta.accepted_per_position)
    return (delta.drafts or 0) > 0 and all(map(plottable, (delta.drafts, *counters)))
