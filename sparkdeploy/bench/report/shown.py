"""The runs of the page, and what its sections are made of: a row a condition, a column a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sparkdeploy.bench.load.record import Asking

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

    from sparkdeploy.bench.quality.comparison import QualityResult
    from sparkdeploy.bench.record import Cell, Run, SuiteResult
    from sparkdeploy.bench.report.plot import Plot

Key = TypeVar("Key", bound="Hashable")
Value = TypeVar("Value")
LOAD = "load"
"""The suite's name, in an open loop and of conversations."""
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run under the name and the colour that it has on the whole page."""

    run: Run
    name: str
    series: int
    others: tuple[Run, ...] = ()
    """Further runs of the very same, oldest first."""
    quality: QualityResult | None = None

    @property
    def recipe(self) -> str:
        """The recipe's name; empty for a bare URL."""
        return self.run.origin.recipe.name if self.run.origin.recipe is not None else ""

    @property
    def free_gib(self) -> float | None:
        """The least memory that was free while anything was measured."""
        machines = (cell.machine for suite in self.run.suites for cell in suite.cells)
        floors = [it.memory_floor_bytes for it in machines if it and it.memory_floor_bytes]
        return min(floors) / 2**30 if floors else None

    def cells(self, suite: str) -> tuple[Cell, ...]:
        """Return the cells of a suite in a closed loop."""
        found = self.run.suite(suite, Asking.CLOSED_LOOP)
        return found.cells if found is not None else ()

    def load(self, asking: Asking) -> SuiteResult | None:
        """Return a load of this run, else the newest of its others: each is a record of its own."""
        found = (run.suite(LOAD, asking) for run in (self.run, *reversed(self.others)))
        return next((suite for suite in found if suite is not None), None)


def asked_of(suite: SuiteResult) -> tuple[object, ...] | None:
    """Return what two suites must have in common for their figures to be compared.

    None for a load without a rate: it was interrupted in its first.
    """
    if suite.asking is Asking.CLOSED_LOOP:
        return suite.asking, suite.prompts
    loads = suite.loads
    if not loads:
        return None
    share = suite.sustained.wanted_share if suite.sustained is not None else None
    limits = tuple(sorted(loads[0].limits_s.items()))
    return suite.asking, suite.prompts, loads[0].arrivals, loads[0].ramp_s, limits, share


def alike(runs: Sequence[ShownRun], asking: Asking) -> list[tuple[ShownRun, SuiteResult]]:
    """Return the runs whose load was asked as the first one's was, each with its load."""
    loaded = [(shown, suite) for shown in runs if (suite := shown.load(asking)) is not None]
    asked = next((asked for _, suite in loaded if (asked := asked_of(suite)) is not None), None)
    return [pair for pair in loaded if asked is not None and asked_of(pair[1]) == asked]


def common_rate(suites: Sequence[SuiteResult]) -> float | None:
    """Return the highest rate that all have."""
    rates = [{load.rate_per_s for load in suite.loads} for suite in suites]
    return max(set.intersection(*rates), default=None) if rates else None


class Bar(NamedTuple):
    """A figure with a bar beneath it; `percent` is of the table's largest figure."""

    text: str
    percent: float
    series: int
    is_published: bool = False


Row = tuple[str, tuple[str | Bar, ...]]
Groups = Sequence[tuple[str, Sequence[Row]]]
"""Rows under a title, which may be empty."""


class Section(NamedTuple):
    """A table with the plots above it; sections.yaml has its heading and explanation."""

    name: str
    corner: str
    runs: Sequence[ShownRun]
    groups: Groups
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()


def across(
    by_run: Sequence[Mapping[Key, Value]],
    head: Callable[[Key], str],
    text: Callable[[Value], str],
) -> list[Row]:
    """Return a row for each condition that any run has, in the order in which they come."""
    conditions = dict.fromkeys(key for cells in by_run for key in cells)
    rows = (
        (head(key), tuple(text(cells[key]) if key in cells else NOTHING for cells in by_run))
        for key in conditions
    )
    return [row for row in rows if set(row[1]) != {NOTHING}]


def with_names(remarks: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield each remark once, before it the names of all runs that it is about."""
    names: dict[str, list[str]] = {}
    for name, remark in remarks:
        names.setdefault(remark, []).append(name)
    yield from (f"{', '.join(runs)}: {remark}" for remark, runs in names.items())


def in_thousands(tokens: float) -> str:
    """Return 1024 as 1K; what is no multiple of it stays as it is."""
    return f"{tokens / 1024:g}K" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:g}"
