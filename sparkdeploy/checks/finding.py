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
    """Stable: `group.name`, as docs/troubleshooting.md lists them."""
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


def fail(check: str, seen: str, fix: str) -> Finding:
    return Finding(check, Verdict.FAIL, seen, fix)


def fail_early(check: str, seen: str, fix: str) -> Finding:
    """Return a failure that stands in the way of images and checkpoints already."""
    return Finding(check, Verdict.FAIL, seen, fix, blocks="prepare")


def said(finding: Finding) -> dict[str, str]:
    """Return what a program reads of a finding whose verdict it knows."""
    return {"check": finding.check, "message": finding.seen, "fix": finding.fix or ""}


def not_seen(check: str, why: str) -> Finding:
    return Finding(check, Verdict.NOT_SEEN, why)


def node_finding(
    check: str,
    node: str,
    result: bool | Verdict,
    seen: str,
    expected: str = "",
    fix: str | None = None,
) -> Finding:
    """Return what a check of one node among several saw; `check` is its name in the group.

    A `result` of False is a failure; any other that is not good is given as its verdict.
    """
    verdict = result if isinstance(result, Verdict) else Verdict.OK if result else Verdict.FAIL
    if verdict is Verdict.OK:
        return Finding(f"cluster.{check}", verdict, f"{node}: {seen}", node=node)
    wanted = f", expected {expected}" if expected else ""
    return Finding(f"cluster.{check}", verdict, f"{node}: {seen}{wanted}", fix or None, node=node)
