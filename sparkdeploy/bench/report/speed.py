"""Speed by prompt class (suites `five`, `decode`), and what others published."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.report.chart import (
    Bar,
    BarChart,
    BarKind,
    Group,
    bounds,
    change,
    failed,
    figure,
    heading_of,
    plottable,
    section_of,
    title_of,
    with_interval,
)
from sparkdeploy.bench.report.table import Column, Row, RowGroup, Table, across, run_columns
from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.bench.record import Cell
    from sparkdeploy.bench.report.chart import Section, ShownRun

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
    chart = BarChart(heading_of(suite), "tok/s", groups)
    return section_of(suite, (chart,), _speed_table(runs, suite, metric), dict.fromkeys(notes))


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


def _speed_table(runs: Sequence[ShownRun], suite: str, metric: str) -> Table:
    told = [{cell.prompt: cell for cell in _measured(shown, suite, metric)} for shown in runs]

    def group(title: str, say: Callable[[Cell], str]) -> RowGroup:
        return across(title, told, partial(title_of, "prompts"), say)

    groups = (
        group("tok/s: mean ± 95 % interval", lambda cell: with_interval(cell.statistics[metric])),
        group("requests that failed", failed),
    )
    return Table(heading_of(suite), "class", run_columns(runs), groups)


def published_section(runs: Sequence[ShownRun], field: Field) -> Section:
    others = [
        Row(other.what, (figure(other.tok_s), f"{other.method}; {other.source}"))
        for other in field.others
    ]
    rows = [row for shown in runs for row in _rows(shown, field)]
    if not rows:
        table = _published_table(("published",), RowGroup("", tuple(others)))
        return section_of("nothing_published", (), table, (OTHERS,))
    table = _published_table(
        ("here", "published", "difference"),
        RowGroup("recipes of these runs", tuple(rows)),
        RowGroup(
            "other set-ups, one request",
            tuple(Row(row.head, ("-", row.cells[0], "-", row.cells[1])) for row in others),
        ),
    )
    notes = [OTHERS]
    elsewhere = ", ".join(
        shown.name
        for shown in runs
        if (machine := shown.run.origin.machine) is None or SPARK not in machine.product
    )
    if elsewhere:
        notes.append(f"Not taken on a DGX Spark, so the difference says little: {elsewhere}.")
    return section_of("published", (), table, notes)


def _published_table(figures: Sequence[str], *groups: RowGroup) -> Table:
    columns = (*map(Column, figures), Column("method and source", is_text=True))
    return Table("Published figures, tok/s", "what", columns, groups)


def _rows(shown: ShownRun, field: Field) -> Iterator[Row]:
    for item in field.published:
        if item.recipe == shown.recipe:
            here = _here(shown, item)
            counted = FIGURES.get(item.figure, item.figure)
            cells = (
                figure(here),
                figure(item.mean),
                change(here / item.mean - 1) if here is not None and item.mean > 0 else "-",
                f"{item.method}; {item.hardware}; {item.source}",
            )
            yield Row(f"{shown.name}: {item.recipe}, {counted} ({item.label})", cells)


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
