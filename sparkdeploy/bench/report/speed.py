"""Tokens a second by prompt class: the suites `five` and `decode`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.report.chart import Bar, BarChart, Group, Kind, plottable
from sparkdeploy.bench.report.section import Section, Table, bounds, figure, interval

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.bench.record import Cell
    from sparkdeploy.bench.report.published import Field, Published
    from sparkdeploy.bench.report.section import Shown

TITLES = {
    "qa": "Question and answer",
    "code": "Code",
    "json": "JSON",
    "math": "Mathematics",
    "long_code": "Long code",
    "prose": "Prose",
    "agent": "Agent",
}


def five_section(runs: Sequence[Shown], field: Field) -> Section | None:
    """End-to-end speed of the five prompt classes, beside published figures of the same recipe."""
    return _section(
        runs,
        field,
        suite="five",
        metric="end_to_end_tok_s",
        heading="Speed by prompt class, end to end",
        explanation=(
            "Completion tokens over the whole time of a request, prefill and HTTP included, one "
            "request at a time: what the published tables of this field count. An outlined bar is "
            "what others published of the recipe above it."
        ),
    )


def decode_section(runs: Sequence[Shown], field: Field) -> Section | None:
    """Decode-only speed by class: speculation makes it depend on the text."""
    return _section(
        runs,
        field,
        suite="decode",
        metric="stream_decode_tok_s",
        heading="Decode speed by kind of text",
        explanation=(
            "Tokens after the first one over the time after the first one: prefill is left out. "
            "Speculation guesses code better than prose, so the kinds are kept apart."
        ),
    )


def _section(
    runs: Sequence[Shown],
    field: Field,
    *,
    suite: str,
    metric: str,
    heading: str,
    explanation: str,
) -> Section | None:
    found = [(shown, cell) for shown in runs for cell in _cells(shown, suite, metric)]
    if not found:
        return None
    beside = field.of(suite, {shown.recipe for shown, _ in found})
    prompts = list(dict.fromkeys(cell.prompt for _, cell in found))
    groups = tuple(
        Group(TITLES.get(prompt, prompt), tuple(_bars(found, beside, prompt=prompt, metric=metric)))
        for prompt in prompts
    )
    return Section(
        anchor=suite,
        heading=heading,
        explanation=explanation,
        charts=(BarChart(heading, "tok/s", groups),),
        table=_table(found, beside, metric),
        notes=tuple(
            dict.fromkeys(
                f"{item.label}: {item.method}; {item.hardware}; {item.source}."
                for item in beside
                if item.prompts
            )
        ),
    )


def _cells(shown: Shown, suite: str, metric: str) -> Iterator[Cell]:
    found = shown.run.suite(suite)
    for cell in found.cells if found is not None else ():
        summary = cell.statistics.get(metric)
        if cell.concurrency == 1 and summary is not None and plottable(summary.mean):
            yield cell


def _measured(shown: Shown, cell: Cell, metric: str) -> Bar:
    summary = cell.statistics[metric]
    low, high = bounds(summary)
    return Bar(shown.name, summary.mean, low, high, shown.series)


def _bars(
    found: Sequence[tuple[Shown, Cell]],
    beside: Sequence[Published],
    *,
    prompt: str,
    metric: str,
) -> Iterator[Bar]:
    """Yield each run's bar and, beneath the last run of a recipe, what others published of it."""
    told = [(shown, cell) for shown, cell in found if cell.prompt == prompt]
    for index, (shown, cell) in enumerate(told):
        yield _measured(shown, cell, metric)
        if shown.recipe in {later.recipe for later, _ in told[index + 1 :]}:
            continue
        for item in beside:
            if item.recipe == shown.recipe and prompt in item.prompts:
                value = item.prompts[prompt]
                yield Bar(item.label, value, series=shown.series, kind=Kind.PUBLISHED)


def _table(found: Sequence[tuple[Shown, Cell]], beside: Sequence[Published], metric: str) -> Table:
    rows = []
    prompts = list(dict.fromkeys(cell.prompt for _, cell in found))
    for shown, cell in sorted(found, key=lambda item: prompts.index(item[1].prompt)):
        summary = cell.statistics[metric]
        others = [
            item.prompts[cell.prompt]
            for item in beside
            if item.recipe == shown.recipe and cell.prompt in item.prompts
        ]
        rows.append(
            (
                TITLES.get(cell.prompt, cell.prompt),
                shown.name,
                figure(summary.mean),
                interval(summary),
                figure(summary.median),
                figure(summary.stdev, 2),
                str(summary.count),
                str(cell.failures),
                figure(others[0]) if others else "-",
            )
        )
    columns = ("class", "run", "mean", "95 % interval", "median", "st. dev.", "rounds", "failed")
    return Table((*columns, "published"), tuple(rows))
