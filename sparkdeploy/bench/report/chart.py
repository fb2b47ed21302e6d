"""What is drawn, before it is drawn: groups of bars, and lines over an axis."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

LARGEST = 1e12
"""Nothing that is measured here is larger; a damaged record may say anything."""


class Kind(Enum):
    """Whose figure it is."""

    MEASURED = "measured"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its 95 % interval where there is one."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    series: int = 0
    """Which colour: a run has the same one in every chart."""
    kind: Kind = Kind.MEASURED


@dataclass(frozen=True, slots=True)
class Group:
    """Bars that are compared with each other."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Groups of bars along one axis that starts at zero."""

    title: str
    unit: str
    groups: tuple[Group, ...]
    digits: int = 1
    """Decimals of the values at the bars."""


@dataclass(frozen=True, slots=True)
class Point:
    """A value over a condition; `low` and `high` are its interval or range."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One run's points, in ascending order of x."""

    label: str
    points: tuple[Point, ...]
    series: int = 0


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over a logarithmic x axis and a y axis that starts at zero."""

    title: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    thousands: bool = False
    """Write x as 1K, 4K, 256K (of 1024)."""


def plottable(value: float | None) -> bool:
    """Say whether a figure of a record can stand on an axis; not-a-number cannot."""
    return value is not None and 0 <= value <= LARGEST
