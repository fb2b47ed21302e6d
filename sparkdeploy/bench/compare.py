"""Runs held against other runs, as far as the variation between runs of the same lets one see.

Figures are compared as logarithms: speeds and times differ by factors. A run is one observation,
however many rounds it has, for its rounds share whatever its start decided. Deviations from the
means of groups of like runs are pooled: `s^2 = sum of squares / degrees`, and the interval of a
difference is `t s sqrt(1/n + 1/m)` (Student's t with the pooled degrees; any textbook's two-sample
t-test with a common variance).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.figures import figures_of, t_quantile
from sparkdeploy.bench.record import LOAD_METRICS, METRICS, Estimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.bench.record import Cell, Run, SuiteResult

CellKey = tuple[str, int, int | None, int, str]
COMPARED = (*METRICS, *LOAD_METRICS)


class DifferenceVerdict(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"
    NONE = "no difference shown"
    UNKNOWN = "not known: one run a side"


@dataclass(frozen=True, slots=True)
class Spread:
    """The variation between runs of the same, pooled over groups."""

    squares: float
    """Sum of squared deviations of logarithms from their group's mean."""
    degrees: int

    @property
    def deviation(self) -> float | None:
        """The standard deviation of a run's logarithm: 0.01 is one per cent. None if unknown."""
        return math.sqrt(self.squares / self.degrees) if self.degrees else None


def verdict_of(ratio: Estimate) -> DifferenceVerdict:
    if ratio.low is None or ratio.high is None:
        return DifferenceVerdict.UNKNOWN
    if ratio.low <= 1 <= ratio.high:
        return DifferenceVerdict.NONE
    return DifferenceVerdict.HIGHER if ratio.low > 1 else DifferenceVerdict.LOWER


def spread_of(groups: Iterable[Sequence[float]]) -> Spread:
    """Pool groups of logarithms; a group of one run says nothing about variation."""
    squares, degrees = 0.0, 0
    for group in groups:
        if len(group) > 1:
            mean = statistics.fmean(group)
            squares += math.fsum((value - mean) ** 2 for value in group)
            degrees += len(group) - 1
    return Spread(squares, degrees)


def ratio_of(base: Sequence[float], other: Sequence[float], spread: Spread) -> Estimate:
    """Return other / base of runs' logarithms; neither is empty."""
    difference = statistics.fmean(other) - statistics.fmean(base)
    if spread.deviation is None:
        return Estimate(math.exp(difference))
    scale = math.sqrt(1 / len(base) + 1 / len(other))
    half = t_quantile(spread.degrees) * spread.deviation * scale
    return Estimate(*map(math.exp, (difference, difference - half, difference + half)))


@dataclass(frozen=True, slots=True)
class Side:
    """Runs of one label that were made by the same, oldest first; at least one."""

    label: str
    runs: tuple[Run, ...]

    @property
    def newest(self) -> Run:
        return self.runs[-1]

    @property
    def suites(self) -> tuple[SuiteResult, ...]:
        """The newest of each name and way of asking: a run may hold one suite alone."""
        found: dict[tuple[str, str], SuiteResult] = {}
        for run in reversed(self.runs):
            for suite in run.suites:
                found.setdefault((suite.name, suite.asking), suite)
        return tuple(found.values())

    def suite_like(self, wanted: SuiteResult) -> SuiteResult | None:
        """Return the suite of that name, asked the same way if there is one."""
        named = [suite for suite in self.suites if suite.name == wanted.name]
        alike = [suite for suite in named if suite.asking is wanted.asking]
        return next(iter(alike or named), None)


@dataclass(frozen=True, slots=True)
class FigureDifference:
    """One figure of one cell: the other side against the base."""

    suite: str
    prompt: str
    concurrency: int
    context_tokens: int | None
    metric: str
    base: float
    """Mean over the runs of each one's mean over its rounds."""
    other: float
    estimate: Estimate
    """Other / base."""
    deviation: float | None
    """Between runs of the same, as a share; None when nothing is known of it."""
    asked: str = ""


@dataclass(frozen=True, slots=True)
class Overall:
    """One figure over all cells of a suite: other / base, the geometric mean of the cells'."""

    suite: str
    metric: str
    cells: int
    estimate: Estimate
    deviation: float | None


@dataclass(frozen=True, slots=True)
class RunComparison:
    base: str
    other: str
    base_runs: tuple[str, ...]
    other_runs: tuple[str, ...]
    variation_from: tuple[str, ...]
    """Labels whose repeated runs say how much runs of the same differ; empty if none does."""
    differences: tuple[FigureDifference, ...]
    overall: tuple[Overall, ...]
    changed: tuple[str, ...]
    """What made their newest runs that is not the same: `driver: 580.1 -> 590.2`."""
    notes: tuple[str, ...]


def sides_of(runs: Iterable[Run]) -> tuple[Side, ...]:
    """Group whole runs by label, of each label those made as its newest one was."""
    by_label: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda item: item.run_id):
        by_label.setdefault(run.label, []).append(run)
    return tuple(
        Side(label, tuple(run for run in found if _makers(run) == _makers(found[-1])))
        for label, found in by_label.items()
    )


def _makers(run: Run) -> dict[str, Any]:
    """Return what made a run of the same server: recipe, image, weights, engine, machine."""
    origin = asdict(run.origin)
    # Of the client only where it stood decides; what vLLM said of its memory differs each time.
    origin["client"] = run.origin.client.machine
    if run.origin.recipe is not None:
        # The same recipe under another name or port is the same.
        del origin["url"], origin["deployment"]
    for name in ("kv_cache_tokens", "kv_cache_gib"):
        if origin["engine"]:
            origin["engine"].pop(name, None)
    return origin


def compare(base: Side, other: Side, known: Sequence[Side] = ()) -> RunComparison:
    """Hold one side against the other; `known` are further sides of the same machine."""
    repeated = repeated_sides([base, other, *known], base)
    differences: list[FigureDifference] = []
    overall: list[Overall] = []
    notes: list[str] = []
    for suite in base.suites:
        match = other.suite_like(suite)
        if match is None:
            notes.append(f"{suite.name}: is in one of the runs only")
        elif suite.asking is not match.asking:
            notes.append(f"{suite.name}: {suite.asking} and {match.asking} do not compare")
        elif suite.prompts != match.prompts:
            notes.append(f"{suite.name}: the prompts differ")
        else:
            lost = {cell.key for cell in suite.cells} ^ {cell.key for cell in match.cells}
            if lost:
                notes.append(f"{suite.name}: {len(lost)} cells are in one of the runs only")
            for metric in COMPARED:
                tables = [_logarithms(it, suite, metric) for it in (base, other, *repeated)]
                differences += _differences(suite, metric, tables)
                overall += _overall(suite, metric, tables)
    return RunComparison(
        base=base.label,
        other=other.label,
        base_runs=tuple(run.run_id for run in base.runs),
        other_runs=tuple(run.run_id for run in other.runs),
        variation_from=tuple(dict.fromkeys(side.label for side in repeated)),
        differences=tuple(differences),
        overall=tuple(overall),
        changed=tuple(_changed(base.newest, other.newest)),
        notes=tuple(notes),
    )


def repeated_sides(sides: Iterable[Side], base: Side) -> list[Side]:
    """Return those with several runs, on the machine of the base; each once."""
    machine = base.newest.origin.machine
    several = {tuple(run.run_id for run in s.runs): s for s in sides if len(s.runs) > 1}
    return [side for side in several.values() if side.newest.origin.machine == machine]


def _differences(
    suite: SuiteResult, metric: str, tables: Sequence[Mapping[CellKey, list[float]]]
) -> Iterator[FigureDifference]:
    before, after, *repeated = tables
    for cell in suite.cells:
        base, other = before.get(cell.key), after.get(cell.key)
        if not base or not other:
            continue
        spread = spread_of(table.get(cell.key, ()) for table in repeated)
        yield FigureDifference(
            suite=suite.name,
            prompt=cell.prompt,
            concurrency=cell.concurrency,
            context_tokens=cell.context_tokens,
            metric=metric,
            base=statistics.fmean(map(math.exp, base)),
            other=statistics.fmean(map(math.exp, other)),
            estimate=ratio_of(base, other, spread),
            deviation=spread.deviation,
            asked=cell.asked,
        )


def _overall(
    suite: SuiteResult, metric: str, tables: Sequence[Mapping[CellKey, list[float]]]
) -> Iterator[Overall]:
    """Yield the figure over all cells, where there are several and some run a side has them all."""
    keys = [cell.key for cell in suite.cells if all(table.get(cell.key) for table in tables[:2])]
    before, after, *repeated = (_over_cells(table, keys) for table in tables)
    if len(keys) > 1 and before and after:
        spread = spread_of(repeated)
        estimate = ratio_of(before, after, spread)
        yield Overall(suite.name, metric, len(keys), estimate, spread.deviation)


def _logarithms(side: Side, suite: SuiteResult, metric: str) -> dict[CellKey, list[float]]:
    """By cell: the logarithm of each run's mean over its rounds, for runs of these prompts."""
    table: dict[CellKey, list[float]] = {}
    for run in side.runs:
        found = run.suite(suite.name, suite.asking)
        if found is None or found.prompts != suite.prompts:
            continue
        for cell in found.cells:
            mean = cell_mean(cell, metric)
            if mean is not None and mean > 0:
                table.setdefault(cell.key, []).append(math.log(mean))
    return table


def cell_mean(cell: Cell, metric: str) -> float | None:
    """Return the mean over rounds; None where the cell has no such figure."""
    if metric in LOAD_METRICS:
        # Without an open loop, or without limits, there is none.
        return getattr(cell.load, metric, None)
    values = [figures[metric] for item in cell.rounds if metric in (figures := figures_of(item))]
    # A damaged record may hold figures whose sum is beyond what a float holds.
    return math.fsum(value / len(values) for value in values) if values else None


def _over_cells(table: Mapping[CellKey, list[float]], keys: Sequence[CellKey]) -> list[float]:
    """A run is one observation: its cells share whatever disturbed it. Runs lacking one are out."""
    columns = [table.get(key, []) for key in keys]
    if len({len(column) for column in columns}) != 1:
        return []
    return [statistics.fmean(values) for values in zip(*columns, strict=True)]


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
