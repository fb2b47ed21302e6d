"""Sizes, durations and times as a person and as a program read them."""

import math
from datetime import UTC, datetime, timedelta

WEEKDAY_IS_CLEAR = timedelta(days=6)
"""Longer ago a weekday could be that of another week."""


def format_bytes(size_bytes: float) -> str:
    """Return a size in decimal units, as disks and downloads are sold: `4.8 GB`."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_gib(size_bytes: float) -> str:
    """Return memory in binary units, as the kernel and vLLM count it: `4.0 GiB`."""
    return f"{size_bytes / 2**30:.1f} GiB"


def format_seconds(duration_s: float) -> str:
    """Return a duration with a fraction where that says something: `12m03s`, `4.2s`."""
    return f"{duration_s:.1f}s" if duration_s < 60 else in_seconds(round(duration_s))


def in_seconds(duration_s: float) -> str:
    """Return a duration without fractions, as one that changes is read: `4s`, `12m03s`, `1h04m`."""
    minutes, seconds = divmod(math.floor(duration_s), 60)
    if minutes < 1:
        return f"{seconds}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s"


def local_time(moment: datetime, now: datetime) -> str:
    """Return `14:02`, `Tue 14:02` or `2026-11-03 14:02`; both moments know their zone."""
    here, today = moment.astimezone(), now.astimezone()
    if here.date() == today.date():
        return f"{here:%H:%M}"
    is_recent = timedelta(0) <= today - here < WEEKDAY_IS_CLEAR
    return f"{here:%a %H:%M}" if is_recent else f"{here:%Y-%m-%d %H:%M}"


def iso_utc(moment: datetime | None) -> str:
    """Return a moment as programs read it, to the second; empty for none."""
    return moment.astimezone(UTC).isoformat(timespec="seconds") if moment is not None else ""
