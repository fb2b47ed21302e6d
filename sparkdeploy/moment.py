"""When something was, as a person says it: by this machine's clock, with a day if needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

A_WEEK = timedelta(days=6)
"""Longer ago a weekday could be that of another week."""


def clock_words(moment: datetime, now: datetime) -> str:
    """Return `14:02`, `Tue 14:02` or `2026-11-03 14:02`, in local time; both know their zone."""
    here, today = moment.astimezone(), now.astimezone()
    if here.date() == today.date():
        return f"{here:%H:%M}"
    is_recent = timedelta(0) <= today - here < A_WEEK
    return f"{here:%a %H:%M}" if is_recent else f"{here:%Y-%m-%d %H:%M}"


def stamp(moment: datetime | None) -> str:
    """Return a moment as programs read it, in UTC to the second; empty for none."""
    return moment.astimezone(UTC).isoformat(timespec="seconds") if moment is not None else ""
