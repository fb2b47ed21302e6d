"""The result of one check: a verdict, the value seen, and the command that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal


class Verdict(Enum):
    """A check's result; what was not seen counts as neither good nor bad."""

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
    """The value seen, with the name of the thing."""
    fix: str | None = None
    """A command, or what to do; None when there is nothing to do."""
    blocks: Literal["prepare", "start"] = "start"
    """The first step that a failure blocks: `prepare` (and so start), or the start."""
    node: str = ""
    """The node of a check between nodes, which `seen` names as well."""

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


def node_finding(  # noqa: PLR0913, PLR0917 - one row of a report
    check: str,
    node: str,
    subject: str,
    is_good: bool,
    value: str,
    expected: str = "",
    fix: str = "",
    *,
    otherwise: Verdict = Verdict.FAIL,
) -> Finding:
    """Return what a check of one node among several saw; `check` is its name in the group."""
    seen, verdict = f"{node}: {subject}: {value}", Verdict.OK if is_good else otherwise
    if not is_good and expected:
        seen += f", expected {expected}"
    return Finding(f"cluster.{check}", verdict, seen, None if is_good else fix or None, node=node)
