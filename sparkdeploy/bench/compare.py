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
from sparkdeploy.bench.record import LOAD_METRICS, METRICS

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


@dataclass(frozen=True, slots=True)
class RatioEstimate:
    """One figure of one side over the other's, with its 95 % interval where it has one."""

    ratio: float
    low95: float | None
    high95: float | None

    @property
    def verdict(self) -> DifferenceVerdict:
        if self.low95 is None or self.high95 is None:
            return DifferenceVerdict.UNKNOWN
        if self.low95 <= 1 <= self.high95:
            return DifferenceVerdict.NONE
        return DifferenceVerdict.HIGHER if self.low95 > 1 else DifferenceVerdict.LOWER


def spread_of(groups: Iterable[Sequence[float]]) -> Spread:
    """Pool groups of logarithms; a group of one run says nothing about variation."""
    squares, degrees = 0.0, 0
    for group in groups:
        if len(group) > 1:
            mean = statistics.fmean(group)
            squares += math.fsum((value - mean) ** 2 for value in group)
            degrees += len(group) - 1
    return Spread(squares, degrees)


def ratio_of(base: Sequence[float], other: Sequence[float], spread: Spread) -> RatioEstimate:
    """Return other / base of runs' logarithms; neither is empty."""
    difference = statistics.fmean(other) - statistics.fmean(base)
    deviation = spread.deviation
    if deviation is None:
        return RatioEstimate(math.exp(difference), None, None)
    scale = math.sqrt(1 / len(base) + 1 / len(other))
    half = t_quantile(spread.degrees) * deviation * scale
    low, high = math.exp(difference - half), math.exp(difference + half)
    return RatioEstimate(math.exp(difference), low, high)


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
    estimate: RatioEstimate
    deviation: float | None
    """Between runs of the same, as a share; None when nothing is known of it."""
    asked: str = ""
    """How requests came, for an open loop."""

    @property
    def relative(self) -> float:
        return self.other / self.base - 1 if self.base else math.nan


@dataclass(frozen=True, slots=True)
class Overall:
    """One figure over all cells of a suite: other / base, the geometric mean of the cells'."""

    suite: str
    metric: str
    cells: int
    estimate: RatioEstimate
    deviation: float | None


@dataclass(frozen=True, slots=True)
class RunComparison:
    base: str
    other: str
    base_runs: tuple[str, ...]
    """Ids."""
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
        Side(label, tuple(run for run in found if made_alike(run, found[-1])))
        for label, found in by_label.items()
    )


def made_alike(one: Run, other: Run) -> bool:
    """Return whether both measured the same server: recipe, image, weights, engine, machine."""
    return _makers(one) == _makers(other)


def _makers(run: Run) -> dict[str, Any]:
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
    witnesses = _witnesses([base, other, *known], base)
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
            notes += _lost(suite, match)
            found = [_figures(suite, metric, base, other, witnesses) for metric in COMPARED]
            differences += [item for cells, _ in found for item in cells]
            overall += [item for _, item in found if item is not None]
    return RunComparison(
        base=base.label,
        other=other.label,
        base_runs=tuple(run.run_id for run in base.runs),
        other_runs=tuple(run.run_id for run in other.runs),
        variation_from=tuple(dict.fromkeys(side.label for side in witnesses)),
        differences=tuple(differences),
        overall=tuple(overall),
        changed=tuple(_changed(base.newest, other.newest)),
        notes=tuple(notes),
    )


def _witnesses(sides: Iterable[Side], base: Side) -> list[Side]:
    """Those with several runs, on the machine of the base; each once."""
    machine = base.newest.origin.machine
    several = {tuple(run.run_id for run in s.runs): s for s in sides if len(s.runs) > 1}
    return [side for side in several.values() if side.newest.origin.machine == machine]


def _lost(suite: SuiteResult, match: SuiteResult) -> Iterator[str]:
    lost = {cell.key for cell in suite.cells} ^ {cell.key for cell in match.cells}
    if lost:
        yield f"{suite.name}: {len(lost)} cells are in one of the runs only"


def _figures(
    suite: SuiteResult, metric: str, base: Side, other: Side, witnesses: Sequence[Side]
) -> tuple[list[FigureDifference], Overall | None]:
    tables = [_logarithms(side, suite, metric) for side in (base, other)]
    before, after = tables
    repeated = [_logarithms(side, suite, metric) for side in witnesses]
    cells = [cell for cell in suite.cells if before.get(cell.key) and after.get(cell.key)]
    found = [
        _difference(suite.name, cell, metric, before, after, _spread(repeated, cell.key))
        for cell in cells
    ]
    if len(cells) < 2:
        return found, None
    keys = [cell.key for cell in cells]
    whole_before, whole_after = _over_cells(before, keys), _over_cells(after, keys)
    if not (whole_before and whole_after):
        return found, None
    spread = spread_of(_over_cells(table, keys) for table in repeated)
    estimate = ratio_of(whole_before, whole_after, spread)
    return found, Overall(suite.name, metric, len(cells), estimate, spread.deviation)


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


def _spread(tables: Iterable[Mapping[CellKey, list[float]]], key: CellKey) -> Spread:
    return spread_of(table.get(key, ()) for table in tables)


def _over_cells(table: Mapping[CellKey, list[float]], keys: Sequence[CellKey]) -> list[float]:
    """A run is one observation: its cells share whatever disturbed it. Runs lacking one are out."""
    columns = [table.get(key, []) for key in keys]
    if len({len(column) for column in columns}) != 1:
        return []
    return [statistics.fmean(values) for values in zip(*columns, strict=True)]


def _difference(
    suite: str,
    cell: Cell,
    metric: str,
    before: Mapping[CellKey, list[float]],
    after: Mapping[CellKey, list[float]],
    spread: Spread,
) -> FigureDifference:
    base_logs, other_logs = before[cell.key], after[cell.key]
    return FigureDifference(
        suite=suite,
        prompt=cell.prompt,
        concurrency=cell.concurrency,
        context_tokens=cell.context_tokens,
        metric=metric,
        base=statistics.fmean(map(math.exp, base_logs)),
        other=statistics.fmean(map(math.exp, other_logs)),
        estimate=ratio_of(base_logs, other_logs, spread),
        deviation=spread.deviation,
        asked=cell.asked,
    )


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
