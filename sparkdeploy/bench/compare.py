"""Runs held against other runs, as far as the variation between runs of the same lets one see.

Figures are compared as logarithms: speeds and times differ by factors. A run is one observation,
however many rounds it has, for its rounds share whatever its start decided. Deviations from the
means of groups of like runs are pooled: `s^2 = sum of squares / degrees`, and the interval of a
difference is `t s sqrt(1/n + 1/m)` (Student's t with the pooled degrees; any textbook's two-sample
t-test with a common variance).
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sparkdeploy.bench.figures import COMPARED, Estimate, t_quantile, value_of
from sparkdeploy.bench.record import CellKey, Run, SuiteResult

Table = Sequence[Mapping[CellKey, float]]
"""One figure of each run of a side, by cell."""


class DifferenceVerdict(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"
    NONE = "no difference shown"
    UNKNOWN = "not known: one run a side"


class Spread(NamedTuple):
    """The variation between runs of the same, pooled over groups."""

    deviation: float | None
    """The standard deviation of a run's logarithm: 0.01 is one per cent. None if unknown."""
    degrees: int


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
    return Spread(math.sqrt(squares / degrees) if degrees else None, degrees)


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
        """The newest of each name: a run may hold one suite alone."""
        found: dict[str, SuiteResult] = {}
        for run in reversed(self.runs):
            for suite in run.suites:
                found.setdefault(suite.name, suite)
        return tuple(found.values())

    def suites_as(self, wanted: SuiteResult) -> Iterator[SuiteResult]:
        """Yield from each run the suite of that name that was asked alike."""
        found = (run.suite(wanted.name) for run in self.runs)
        yield from (it for it in found if it is not None and asked_of(it) == asked_of(wanted))


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
class RunComparison:
    base: str
    other: str
    base_runs: tuple[str, ...]
    other_runs: tuple[str, ...]
    variation_from: tuple[str, ...]
    """Labels whose repeated runs say how much runs of the same differ; empty if none does."""
    differences: tuple[FigureDifference, ...]
    overall: tuple[FigureDifference, ...]
    """Of each figure over several cells: the geometric mean of theirs."""
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


def asked_of(suite: SuiteResult) -> tuple[object, ...]:
    """Return what two suites of a name have in common if all their figures may be compared."""
    share = suite.sustained.wanted_share if suite.sustained is not None else None
    limits = tuple(sorted(suite.loads[0].limits_s.items())) if suite.loads else ()
    return suite.prompts, limits, share


def compare(base: Side, other: Side, known: Sequence[Side] = ()) -> RunComparison:
    """Hold one side against the other; `known` are further sides of the same machine."""
    repeated = repeated_sides([base, other, *known], base)
    differences: list[FigureDifference] = []
    overall: list[FigureDifference] = []
    notes: list[str] = []
    for suite in base.suites:
        match = next((it for it in other.suites if it.name == suite.name), None)
        if match is None:
            notes.append(f"{suite.name}: is in one of the runs only")
        elif asked_of(suite) != asked_of(match):
            notes.append(f"{suite.name}: prompts or limits differ")
        else:
            lost = {cell.key for cell in suite.cells} ^ {cell.key for cell in match.cells}
            if lost:
                notes.append(f"{suite.name}: {len(lost)} cells are in one of the runs only")
            for metric in COMPARED:
                tables = [
                    [figures_of(found, metric) for found in side.suites_as(suite)]
                    for side in (base, other, *repeated)
                ]
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


def figures_of(suite: SuiteResult, metric: str) -> dict[CellKey, float]:
    """Return one figure of a suite by cell, where it has it."""
    found = ((cell.key, value_of(cell, metric)) for cell in suite.cells)
    return {key: value for key, value in found if value is not None}


def logarithms(table: Table, keys: Set[CellKey]) -> list[float]:
    """Return each run's mean of logarithms over these cells, of the runs that have them all."""
    whole = ([run[key] for key in keys if run.get(key, 0.0) > 0] for run in table)
    return [
        math.fsum(math.log(it) / len(keys) for it in run) for run in whole if len(run) == len(keys)
    ]


class RatioOver(NamedTuple):
    base: float
    other: float
    """Each side's mean over some cells."""
    estimate: Estimate
    """Other / base."""
    deviation: float | None


def ratio_over(tables: Sequence[Table], keys: Set[CellKey]) -> RatioOver | None:
    """Return how base and other, the first two tables, differ; by the others how much runs do."""
    base, other, *repeated = (logarithms(table, keys) for table in tables)
    if not base or not other:
        return None
    spread = spread_of(repeated)
    before, after = (statistics.fmean(map(math.exp, side)) for side in (base, other))
    return RatioOver(before, after, ratio_of(base, other, spread), spread.deviation)


def _differences(
    suite: SuiteResult, metric: str, tables: Sequence[Table]
) -> Iterator[FigureDifference]:
    for cell in suite.cells:
        where = (suite.name, cell.prompt, cell.concurrency, cell.context_tokens, metric)
        if found := ratio_over(tables, {cell.key}):
            yield FigureDifference(*where, *found, asked=cell.asked)


def _overall(
    suite: SuiteResult, metric: str, tables: Sequence[Table]
) -> Iterator[FigureDifference]:
    """Yield the figure over all cells, where there are several and some run a side has them all."""
    keys = {
        cell.key
        for cell in suite.cells
        if all(any(run.get(cell.key) for run in table) for table in tables[:2])
    }
    if len(keys) > 1 and (found := ratio_over(tables, keys)):
        yield FigureDifference(suite.name, f"all {len(keys)}", 0, None, metric, *found)


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
