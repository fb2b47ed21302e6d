"""Speed by prompt class (suites `five`, `decode`), accepted drafts, and what others published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.report.chart import (
    Bar,
    BarChart,
    BarKind,
    Group,
    bounds,
    change,
    figure,
    heading_of,
    interval,
    plottable,
    section_of,
    title_of,
)
from sparkdeploy.bench.watch import together
from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.bench.record import Cell, ServerDelta
    from sparkdeploy.bench.report.chart import Section, ShownRun

MOST_POSITIONS = 32
"""More than any drafter of this field; a damaged record may say anything."""
SPEEDS = {"five": "end_to_end_tok_s", "decode": "stream_decode_tok_s"}
"""By suite: the figure that is drawn."""
SPARK = "DGX Spark"
OTHERS = "The published figures are other people's, taken on one DGX Spark."
FIGURES = {"end_to_end_tok_s": "end to end", "stream_decode_tok_s": "decode only"}


@dataclass(frozen=True, slots=True)
class Published:
    """What somebody reported of one recipe: by prompt, or one figure for all of a suite."""

    label: str
    recipe: str
    suite: str
    figure: str
    """Ours that it can stand beside: a name of `record.METRICS`."""
    method: str
    hardware: str
    source: str
    prompts: Mapping[str, float]
    mean: float
    """Of the prompts, unless only one figure was published."""


@dataclass(frozen=True, slots=True)
class Other:
    """A figure of another set-up for the 122B on one Spark."""

    what: str
    tok_s: float
    method: str
    source: str


@dataclass(frozen=True, slots=True)
class Field:
    published: tuple[Published, ...]
    others: tuple[Other, ...]


def read_published(path: Path) -> Field:
    """Read the table; it is ours, so its shape is not questioned."""
    content = read_document(path).content
    return Field(
        tuple(_published(**entry) for entry in content["published"]),
        tuple(Other(**entry) for entry in content["others"]),
    )


def _published(prompts: Mapping[str, float] | None = None, **entry: Any) -> Published:  # noqa: ANN401 - YAML
    prompts = prompts or {}
    mean = entry.pop("mean", None) or sum(prompts.values()) / len(prompts)
    return Published(**entry, prompts=prompts, mean=mean)


def speed_section(runs: Sequence[ShownRun], field: Field, suite: str) -> Section | None:
    metric = SPEEDS[suite]
    by_prompt: dict[str, list[tuple[ShownRun, Cell]]] = {}
    for shown in runs:
        for cell in _measured(shown, suite, metric):
            by_prompt.setdefault(cell.prompt, []).append((shown, cell))
    if not by_prompt:
        return None
    found = [pair for told in by_prompt.values() for pair in told]
    recipes = {shown.recipe for shown, _ in found}
    beside = [item for item in field.published if item.suite == suite and item.recipe in recipes]
    groups = tuple(
        Group(title_of("prompts", prompt), tuple(_bars(told, beside, metric)))
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
        title_of("prompts", cell.prompt),
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
    drafting = [(shown, _drafting(shown)) for shown in runs]
    groups: dict[int, list[Bar]] = {}
    for shown, cells in drafting:
        # Each cell is weighted by its steps.
        summed = together((delta for _, delta in cells), kv_usage_peak=None)
        rates = summed.acceptance_per_position[:MOST_POSITIONS] if summed is not None else ()
        for position, rate in enumerate(rates, 1):
            if plottable(rate):
                bar = Bar(shown.name, 100 * rate, series=shown.series)
                groups.setdefault(position, []).append(bar)
    if not groups:
        return None
    positions = tuple(Group(f"Position {at}", tuple(groups[at])) for at in sorted(groups))
    return section_of(
        "acceptance",
        (BarChart(heading_of("acceptance"), "% of drafting steps", positions),),
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


def _acceptance_rows(shown: ShownRun, cells: Drafting) -> Iterator[tuple[str, ...]]:
    for cell, delta in cells:
        name = title_of("prompts", cell.prompt)
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


def published_section(runs: Sequence[ShownRun], field: Field) -> Section:
    others = [
        (other.what, figure(other.tok_s), f"{other.method}; {other.source}")
        for other in field.others
    ]
    rows = [row for shown in runs for row in _rows(shown, field)]
    if not rows:
        return section_of("nothing_published", (), others, (OTHERS,))
    rows += [("-", what, "-", tok_s, "-", said) for what, tok_s, said in others]
    notes = [OTHERS]
    elsewhere = ", ".join(
        shown.name
        for shown in runs
        if (machine := shown.run.origin.machine) is None or SPARK not in machine.product
    )
    if elsewhere:
        notes.append(f"Not taken on a DGX Spark, so the difference says little: {elsewhere}.")
    return section_of("published", (), rows, notes)


def _rows(shown: ShownRun, field: Field) -> Iterator[tuple[str, ...]]:
    for item in field.published:
        if item.recipe == shown.recipe:
            here = _here(shown, item)
            yield (
                shown.name,
                f"{item.recipe}, {FIGURES.get(item.figure, item.figure)} ({item.label})",
                figure(here),
                figure(item.mean),
                change(here / item.mean - 1) if here is not None and item.mean > 0 else "-",
                f"{item.method}; {item.hardware}; {item.source}",
            )


def _here(shown: ShownRun, item: Published) -> float | None:
    means = [
        cell.statistics[item.figure].mean
        for cell in shown.cells(item.suite)
        if cell.concurrency == 1
        and item.figure in cell.statistics
        and (not item.prompts or cell.prompt in item.prompts)
    ]
    # A class that is missing or damaged would make the mean one of something else.
    if not means or len(means) < len(item.prompts) or not all(map(plottable, means)):
        return None
    return sum(means) / len(means)
