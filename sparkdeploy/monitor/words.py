"""Figures as people read them, `-` for what is not known, and fields on lines of so many columns.

A field is whole or is not there, so that no figure is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.terminal.style import Line, Piece, Style, line_cells, plain_text
from sparkdeploy.units import format_seconds, in_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from sparkdeploy.monitor.figures import Percentiles

UNKNOWN = "-"
GIB = 2**30
BETWEEN = "   "
BLOCKS = "▁▂▃▄▅▆▇█"
LETTERS = "_.-:=+*#"
"""For a terminal whose encoding has no blocks."""


def number(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """Return a rate with as many digits as mean something: `51.3`, `1,204`."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share * 100:.0f} %"


def percents(shares: tuple[float, ...]) -> str:
    """Return several under one sign: `88 71 %`."""
    if not shares:
        return UNKNOWN
    return " ".join(f"{share * 100:.0f}" for share in shares) + " %"


def duration(value_s: float | None) -> str:
    if value_s is None:
        return UNKNOWN
    if value_s < 1:
        milliseconds = value_s * 1000
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    return f"{value_s:.2f} s" if value_s < 100 else format_seconds(value_s)


def pair(both: Percentiles) -> str:
    return f"p50 {duration(both.p50_s)}, p95 {duration(both.p95_s)}"


def gib(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else f"{size_bytes / GIB:.1f}"


def clock(moment: datetime) -> str:
    """Return the time of day here."""
    return moment.astimezone().strftime("%H:%M:%S")


def ago(moment: datetime, now: datetime) -> str:
    return format_whole_seconds(max((now - moment).total_seconds(), 0.0))


def format_whole_seconds(duration_s: float) -> str:
    """Return a duration that does not change more than once a second: `34s`, `12m03s`, `3d04h`."""
    days, seconds = divmod(int(duration_s), 86400)
    return f"{days}d{seconds // 3600:02d}h" if days else in_seconds(duration_s)


def field(label: str, *values: Piece | str) -> Line:
    """Return a figure with what it is; nothing but the value where the label is empty."""
    pieces = [Piece(it) if isinstance(it, str) else it for it in values]
    return (Piece(f"{label} ", Style.QUIET), *pieces) if label else tuple(pieces)


def flow(fields: Iterable[Line], columns: int, indent: str = "  ") -> tuple[Line, ...]:
    """Put fields one after the other, on as many lines as they take."""
    lines: list[list[Piece]] = []
    width = columns + 1
    for item in filter(plain_text, fields):
        needed = len(BETWEEN) + line_cells(item)
        if width + needed > columns:
            lines.append([Piece(indent)])
            width = len(indent) + line_cells(item)
        else:
            lines[-1].append(Piece(BETWEEN))
            width += needed
        lines[-1] += item
    return tuple(map(tuple, lines))


def fitted(fields: Sequence[Line], columns: int, indent: str = "") -> Line:
    """Put on one line as many of the fields as fit, the first ones first."""
    lines = flow(fields, columns, indent)
    return lines[0] if lines else ()


def sparkline(values: Sequence[float], columns: int, ramp: str = BLOCKS) -> str:
    """Draw the last values, the highest of them as high as a line is."""
    shown = values[-columns:] if columns > 0 else ()
    highest = max(shown, default=0.0)
    steps = len(ramp) - 1
    return "".join(ramp[round(value / highest * steps) if highest else 0] for value in shown)
