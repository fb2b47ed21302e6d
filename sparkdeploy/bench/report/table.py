"""Tables of the page: a row a condition, a column a run, so that runs are read across."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from sparkdeploy.bench.report.chart import ShownRun

Key = TypeVar("Key", bound="Hashable")
Value = TypeVar("Value")
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    series: int | None = None
    """The colour of the run that the column is of."""
    is_text: bool = False
    """Words stand to the left and may wrap, numbers to the right."""


@dataclass(frozen=True, slots=True)
class Row:
    head: str
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one figure; an empty title heads none."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Table:
    caption: str
    corner: str
    """What the rows' heads are."""
    columns: tuple[Column, ...]
    groups: tuple[RowGroup, ...]


def run_columns(runs: Iterable[ShownRun]) -> tuple[Column, ...]:
    return tuple(Column(shown.name, shown.series) for shown in runs)


def across(
    title: str,
    by_run: Sequence[Mapping[Key, Value]],
    head: Callable[[Key], str],
    say: Callable[[Value], str],
) -> RowGroup:
    """Return a row for each condition that any run has, in the order in which they come."""
    conditions = dict.fromkeys(key for told in by_run for key in told)
    rows = (
        Row(head(key), tuple(say(told[key]) if key in told else NOTHING for told in by_run))
        for key in conditions
    )
    return RowGroup(title, tuple(row for row in rows if set(row.cells) != {NOTHING}))
