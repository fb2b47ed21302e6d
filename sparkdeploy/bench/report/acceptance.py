"""How often drafts were accepted, by their position in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.report.chart import Bar, BarChart, Group, plottable
from sparkdeploy.bench.report.section import Section, Table, figure
from sparkdeploy.bench.report.speed import TITLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.bench.record import Cell, ServerDelta
    from sparkdeploy.bench.report.section import Shown

SUITES = ("five", "decode")
FILLED = ("sweep",)
"""Prompts made to fill a context; they count only where there are no others."""
MOST_POSITIONS = 32
"""More than any drafter of this field; a damaged record may say anything."""


def acceptance_section(runs: Sequence[Shown]) -> Section | None:
    """Acceptance of all suites together, by position, and by prompt in the table."""
    by_run = [(shown, _together(list(_drafting(shown)))) for shown in runs]
    longest = max((len(rates) for _, rates in by_run), default=0)
    groups = tuple(
        Group(
            f"Position {position + 1}",
            tuple(
                Bar(shown.name, 100 * rates[position], series=shown.series)
                for shown, rates in by_run
                if position < len(rates) and plottable(rates[position])
            ),
        )
        for position in range(longest)
    )
    groups = tuple(group for group in groups if group.bars)
    if not groups:
        return None
    heading = "Accepted drafts by position"
    return Section(
        anchor="acceptance",
        heading=heading,
        explanation=(
            "Of all steps that drafted, the share in which the draft at that place was taken. A "
            "draft counts only when all before it did, so the share falls from place to place. "
            "Counted by the server over all prompts; the table has each by itself."
        ),
        charts=(BarChart(heading, "% of drafting steps", groups),),
        table=_table(runs),
    )


def _drafting(shown: Shown) -> Iterator[Cell]:
    yield from _of_suites(shown, SUITES) or _of_suites(shown, FILLED)


def _of_suites(shown: Shown, names: Sequence[str]) -> list[Cell]:
    suites = [suite for name in names if (suite := shown.run.suite(name)) is not None]
    return [
        cell
        for suite in suites
        for cell in suite.cells
        if cell.server is not None and _has_drafted(cell.server)
    ]


def _has_drafted(delta: ServerDelta) -> bool:
    counters = (delta.draft_tokens or 0, delta.accepted_tokens or 0, *delta.accepted_per_position)
    return (delta.drafts or 0) > 0 and all(map(plottable, (delta.drafts, *counters)))


def _together(cells: Sequence[Cell]) -> tuple[float, ...]:
    """Return accepted over drafting steps by position, each cell weighted by its steps."""
    counted = [cell.server for cell in cells if cell.server is not None]
    longest = min(max((len(c.accepted_per_position) for c in counted), default=0), MOST_POSITIONS)
    steps = sum(delta.drafts or 0 for delta in counted)
    return tuple(
        sum(d.accepted_per_position[at] for d in counted if at < len(d.accepted_per_position))
        / steps
        for at in range(longest)
    )


def _table(runs: Sequence[Shown]) -> Table:
    rows = []
    for shown in runs:
        for cell in _drafting(shown):
            delta = cell.server
            if delta is None:
                continue
            rates = delta.acceptance_per_position[:MOST_POSITIONS]
            rows.append(
                (
                    shown.name,
                    _condition(cell),
                    " / ".join(figure(100 * rate, 0) for rate in rates) or "-",
                    figure(100 * delta.acceptance if delta.acceptance is not None else None),
                    figure(delta.mean_acceptance_length, 2),
                    f"{delta.drafts:,}",
                )
            )
    columns = ("run", "prompt", "% by position", "% of drafts", "tokens a step", "steps")
    return Table(columns, tuple(rows))


def _condition(cell: Cell) -> str:
    name = TITLES.get(cell.prompt, cell.prompt)
    context = f", {cell.context_tokens:,} tokens" if cell.context_tokens else ""
    return f"{name}{context}" + (f", {cell.concurrency} at once" if cell.concurrency > 1 else "")
