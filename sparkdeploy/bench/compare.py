"""A run held against another one, as far as the rounds can show, or against a floor.

A round of one run is paired with the round of the same number of the other, for the same prompt,
concurrency and context. The interval is Student's, over the differences of the pairs; over all
cells of a suite it is over the rounds' mean logarithm of the ratios.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.figures import figures_of, mean_of, summarise
from sparkdeploy.bench.record import METRICS, Summary
from sparkdeploy.errors import BenchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.bench.record import Cell, Run, RunOrigin

GATED_SUITE = "five"
GATED_METRIC = "end_to_end_tok_s"
UNKNOWN = Summary(0, math.nan, math.nan)
"""Of no rounds at all."""
Values = dict[int, tuple[float, float]]
"""By round: the base's figure and the other's."""


class DifferenceVerdict(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"
    NONE = "no difference shown"
    UNKNOWN = "one round shows nothing"


@dataclass(frozen=True, slots=True)
class FigureDifference:
    """One figure of one cell: the other run minus the base."""

    suite: str
    prompt: str
    concurrency: int
    context_tokens: int | None
    metric: str
    base: float
    """Mean over the paired rounds."""
    other: float
    difference: Summary
    verdict: DifferenceVerdict

    @property
    def relative(self) -> float:
        return self.difference.mean / self.base if self.base else math.nan


@dataclass(frozen=True, slots=True)
class Overall:
    """One figure over all cells of a suite: other / base."""

    suite: str
    metric: str
    cells: int
    ratio: float
    """Geometric mean."""
    low95: float | None
    high95: float | None
    verdict: DifferenceVerdict


@dataclass(frozen=True, slots=True)
class RunComparison:
    base: str
    other: str
    differences: tuple[FigureDifference, ...]
    overall: tuple[Overall, ...]
    changed: tuple[str, ...]
    """What made them that is not the same: `driver: 580.1 -> 590.2`."""
    notes: tuple[str, ...]


def compare(base: Run, other: Run) -> RunComparison:
    differences: list[FigureDifference] = []
    overall: list[Overall] = []
    notes: list[str] = []
    for suite in base.suites:
        match = other.suite(suite.name)
        if match is None:
            notes.append(f"{suite.name}: is in one of the runs only")
            continue
        if suite.prompts != match.prompts:
            notes.append(f"{suite.name}: the prompts differ")
            continue
        there = {cell.key: cell for cell in match.cells}
        pairs = [(cell, there[cell.key]) for cell in suite.cells if cell.key in there]
        lost = len(suite.cells) + len(match.cells) - 2 * len(pairs)
        if lost:
            notes.append(f"{suite.name}: {lost} cells are in one of the runs only")
        for metric in METRICS:
            by_cell = [(cell, _rounds(cell, pair, metric)) for cell, pair in pairs]
            shown = [(cell, values) for cell, values in by_cell if values]
            differences += [_difference(suite.name, cell, metric, v) for cell, v in shown]
            if len(shown) > 1:
                overall.append(_overall(suite.name, metric, [values for _, values in shown]))
    return RunComparison(
        base=base.run_id,
        other=other.run_id,
        differences=tuple(differences),
        overall=tuple(overall),
        changed=tuple(_changed(base, other)),
        notes=tuple(notes),
    )


def _rounds(base: Cell, other: Cell, metric: str) -> Values:
    before = {item.round: figures_of(item) for item in base.rounds}
    after = {item.round: figures_of(item) for item in other.rounds}
    return {
        number: (before[number][metric], after[number][metric])
        for number in sorted(before.keys() & after.keys())
        if metric in before[number] and metric in after[number]
    }


def _difference(suite: str, cell: Cell, metric: str, values: Values) -> FigureDifference:
    found = summarise([after - before for before, after in values.values()]) or UNKNOWN
    return FigureDifference(
        suite=suite,
        prompt=cell.prompt,
        concurrency=cell.concurrency,
        context_tokens=cell.context_tokens,
        metric=metric,
        base=statistics.fmean(before for before, _ in values.values()),
        other=statistics.fmean(after for _, after in values.values()),
        difference=found,
        verdict=_verdict(found),
    )


def _overall(suite: str, metric: str, cells: list[Values]) -> Overall:
    """A round is one observation: its cells share whatever disturbed it."""
    numbers = set.intersection(*(set(values) for values in cells))
    logs = [
        statistics.fmean(math.log(values[number][1] / values[number][0]) for values in cells)
        for number in sorted(numbers)
        if all(min(values[number]) > 0 for values in cells)
    ]
    found = summarise(logs) or UNKNOWN
    low95, high95 = (None if end is None else math.exp(end) for end in (found.low95, found.high95))
    ratio = math.exp(found.mean)
    return Overall(suite, metric, len(cells), ratio, low95, high95, _verdict(found))


def _verdict(found: Summary) -> DifferenceVerdict:
    if found.low95 is None or found.high95 is None:
        return DifferenceVerdict.UNKNOWN
    if found.low95 <= 0 <= found.high95:
        return DifferenceVerdict.NONE
    return DifferenceVerdict.HIGHER if found.low95 > 0 else DifferenceVerdict.LOWER


def _changed(base: Run, other: Run) -> Iterator[str]:
    before, after = (dict(_flat(asdict(run.origin))) for run in (base, other))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"{name}: {before.get(name)} -> {after.get(name)}"


def _flat(value: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    for name, item in value.items():
        if isinstance(item, dict):
            yield from _flat(item, f"{above}{name}.")
        elif isinstance(item, list | tuple) and any(isinstance(part, dict) for part in item):
            yield from _flat({str(n): part for n, part in enumerate(item)}, f"{above}{name}.")
        else:
            yield above + name, item


def floor_of(origin: RunOrigin, floor_tok_s: float | None) -> tuple[float, str]:
    """UsageError when there is none, before an hour is spent on measuring."""
    if floor_tok_s is not None:
        return floor_tok_s, "--floor"
    recipe = origin.recipe
    if recipe is None or recipe.floor_tok_s is None:
        raise UsageError(
            "--gate has no floor: no recipe with expect.end_to_end_tok_s is known",
            hint="give one with --floor TOK_S",
        )
    return recipe.floor_tok_s, recipe.floor_source


def require_gated_suite(suites: Sequence[str]) -> None:
    if GATED_SUITE not in suites:
        raise UsageError(f"--gate needs suite {GATED_SUITE}", hint=f"add --suite {GATED_SUITE}")


def require_gate(run: Run, floor_tok_s: float, source: str) -> None:
    """Judge the mean of the five prompts, end to end, as published figures are taken."""
    suite = run.suite(GATED_SUITE)
    cells = suite.cells if suite is not None else ()
    failures = sum(cell.failures for cell in cells)
    if failures:
        raise BenchError(f"--gate: {failures} requests failed")
    reached_tok_s = mean_of(cells, GATED_METRIC)
    if reached_tok_s < floor_tok_s:
        raise BenchError(
            f"{reached_tok_s:.1f} tok/s end to end is below the floor of {floor_tok_s:g} ({source})"
        )
