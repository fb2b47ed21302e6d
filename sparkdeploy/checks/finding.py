"""What one check found: a verdict, the value seen, and the command that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal


class Verdict(Enum):
    """How a check ended; what was not seen counts as neither good nor bad."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    NOT_SEEN = "not seen"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    """Stable: `group.name`, as docs/doctor.md lists them."""
    verdict: Verdict
    seen: str
    """The value seen, in words that name the thing."""
    fix: str | None = None
    """A command, or what to do; None when nothing is wrong, or nothing is to be mended."""
    blocks: Literal["prepare", "start"] = "start"
    """The first thing that a failure keeps a plan from: `prepare` (and so start), or the start."""

    @property
    def group(self) -> str:
        return self.check.partition(".")[0]


def ok(check: str, seen: str) -> Finding:
    return Finding(check, Verdict.OK, seen)


def warn(check: str, seen: str, fix: str) -> Finding:
    return Finding(check, Verdict.WARN, seen, fix)


def fail(
    check: str, seen: str, fix: str, *, blocks: Literal["prepare", "start"] = "start"
) -> Finding:
    return Finding(check, Verdict.FAIL, seen, fix, blocks)


def not_seen(check: str, why: str) -> Finding:
    return Finding(check, Verdict.NOT_SEEN, why)
