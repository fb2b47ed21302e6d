"""Figures as people read them; `-` for what is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.agenda import in_seconds
from sparkdeploy.console import format_seconds

if TYPE_CHECKING:
    from datetime import datetime

    from sparkdeploy.monitor.figures import Percentiles

UNKNOWN = "-"
GIB = 2**30


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
