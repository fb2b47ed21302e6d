"""Tokens a second by prompt class (suites `five` and `decode`), and how often drafts were taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.report.chart import (
    Bar,
    BarChart,
    BarKind,
    Group,
    bounds,
    figure,
    heading_of,
    interval,
    plottable,
    section_of,
)
from sparkdeploy.bench.watch import together

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.bench.record import Cell, ServerDelta
    from sparkdeploy.bench.report.chart import Section, ShownRun
    from sparkdeploy.bench.report.published import Field, Published

TITLES = {
    "qa": "Question and answer",
    "code": "Code",
    "json": "JSON",
    "math": "Mathematics",
    "long_code": "Long code",
    "prose": "Prose",
    "agent": "Agent",
}
MOST_POSITIONS = 32
"""More than any drafter of this field; a damaged record may say anything."""
SPEEDS = {"five": "end_to_end_tok_s", "decode": "stream_decode_tok_s"}
"""By suite: the figure that is drawn."""


def speed_section(runs: Sequence[ShownRun], field: Field, suite: str) -> Section | None:
    """Speed by prompt of a suite of SPEEDS, beside published figures of the same recipe."""
    metric = SPEEDS[suite]
    by_prompt: dict[str, list[tuple[ShownRun, Cell]]] = {}
    for shown in runs:
        for cell in _measured(shown, suite, metric):
            by_prompt.setdefault(cell.prompt, []).append((shown, cell))
    if not by_prompt:
        return None
    found = [pair for told in by_prompt.values() for pair in told]
    beside = field.of(suite, {shown.recipe for shown, _ in found})
    groups = tuple(
        Group(TITLES.get(prompt, prompt), tuple(_bars(told, beside, metric)))
        for prompt, told in by_prompt.items()
    )
    notes = (
        f"{item.label}: {item.method}; {item.hardware}; {item.source}."
        for item in beside
        if item.prompts
    )
    return section_of(
        suite,
        (BarChart(heading_of(suite), "tok/s", groups),),
        (_speed_row(shown, cell, beside, metric) for shown, cell in found),
        dict.fromkeys(notes),
    )


def _measured(shown: ShownRun, suite: str, metric: str) -> Iterator[Cell]:
    for cell in shown.cells(suite):
        summary = cell.statistics.get(metric)
        if cell.concurrency == 1 and summary is not None and plottable(summary.mean):
            yield cell


def _bars(
    told: Sequence[tuple[ShownRun, Cell]], beside: Sequence[Published], metric: str
) -> Iterator[Bar]:
    """Yield each run's bar and, beneath the last run of a recipe, what others published of it."""
    for index, (shown, cell) in enumerate(told):
        summary = cell.statistics[metric]
        low, high = bounds(summary)
        yield Bar(shown.name, summary.mean, low, high, shown.series)
        if shown.recipe in {later.recipe for later, _ in told[index + 1 :]}:
            continue
        for item in beside:
            if item.recipe == shown.recipe and cell.prompt in item.prompts:
                value = item.prompts[cell.prompt]
                yield Bar(item.label, value, series=shown.series, kind=BarKind.PUBLISHED)


def _speed_row(
    shown: ShownRun, cell: Cell, beside: Sequence[Published], metric: str
) -> tuple[str, ...]:
    summary = cell.statistics[metric]
    others = (item.prompts.get(cell.prompt) for item in beside if item.recipe == shown.recipe)
    return (
        TITLES.get(cell.prompt, cell.prompt),
        shown.name,
        figure(summary.mean),
        interval(summary),
        figure(summary.median),
        figure(summary.stdev, 2),
        str(summary.count),
        str(cell.failures),
        figure(next((tok_s for tok_s in others if tok_s is not None), None)),
    )


def acceptance_section(runs: Sequence[ShownRun]) -> Section | None:
    """How often drafts were accepted, by their position in a step; by prompt in the table."""
    drafting = [(shown, _drafting(shown)) for shown in runs]
    by_run = [(shown, _rates(cells)) for shown, cells in drafting]
    groups = []
    for position in range(max((len(rates) for _, rates in by_run), default=0)):
        bars = tuple(
            Bar(shown.name, 100 * rates[position], series=shown.series)
            for shown, rates in by_run
            if position < len(rates) and plottable(rates[position])
        )
        if bars:
            groups.append(Group(f"Position {position + 1}", bars))
    if not groups:
        return None
    return section_of(
        "acceptance",
        (BarChart(heading_of("acceptance"), "% of drafting steps", tuple(groups)),),
        (row for pair in drafting for row in _acceptance_rows(*pair)),
    )


Drafting = list[tuple["Cell", "ServerDelta"]]


def _drafting(shown: ShownRun) -> Drafting:
    """A sweep's prompts are made to fill a context; they count only where there are no others."""
    return _drafted(shown, "five") + _drafted(shown, "decode") or _drafted(shown, "sweep")


def _drafted(shown: ShownRun, suite: str) -> Drafting:
    found = ((cell, cell.server) for cell in shown.cells(suite))
    return [(cell, delta) for cell, delta in found if delta is not None and _has_drafted(delta)]


def _has_drafted(delta: ServerDelta) -> bool:
    counters = (delta.draft_tokens or 0, delta.accepted_tokens or 0, *delta.accepted_per_position)
    return (delta.drafts or 0) > 0 and all(map(plottable, (delta.drafts, *counters)))


def _rates(cells: Drafting) -> tuple[float, ...]:
    """Each cell is weighted by its steps."""
    summed = together((delta for _, delta in cells), kv_usage_peak=None)
    return summed.acceptance_per_position[:MOST_POSITIONS] if summed is not None else ()


def _acceptance_rows(shown: ShownRun, cells: Drafting) -> Iterator[tuple[str, ...]]:
    for cell, delta in cells:
        name = TITLES.get(cell.prompt, cell.prompt)
        context = f", {cell.context_tokens:,} tokens" if cell.context_tokens else ""
        streams = f", {cell.concurrency} at once" if cell.concurrency > 1 else ""
        rates = delta.acceptance_per_position[:MOST_POSITIONS]
        yield (
            shown.name,
            f"{name}{context}{streams}",
            " / ".join(figure(100 * rate, 0) for rate in rates) or "-",
            figure(100 * delta.acceptance if delta.acceptance is not None else None),
            figure(delta.mean_acceptance_length, 2),
            f"{delta.drafts:,}",
        )
