"""Findings as lines for a person and as plain values for a program or a crash folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkdeploy.checks.finding import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.checks.finding import Finding

GROUPS = ("machine", "gpu", "docker", "folders", "ports", "network", "deployments", "recipe")
"""In the order in which they are shown."""
SIGNS = {Verdict.OK: "=", Verdict.WARN: "!", Verdict.FAIL: "x", Verdict.NOT_SEEN: "?"}


def as_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return a report: `verdict` is the worst of all, `checks` every finding in order."""
    return {
        "schema": 1,
        "verdict": worst(findings).value,
        "checks": [
            {
                "check": item.check,
                "group": item.group,
                "verdict": item.verdict.value,
                "seen": item.seen,
                "fix": item.fix,
            }
            for item in in_order(findings)
        ],
    }


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield one line a check, by group, and the fix beneath where one is needed."""
    group = ""
    for item in in_order(findings):
        if item.group != group:
            group = item.group
            yield group
        name = item.check.partition(".")[2]
        yield f"  {SIGNS[item.verdict]} {name:<20} {item.seen}"
        if item.fix:
            yield f"      fix: {item.fix}"
    failed, warned = _count(findings, Verdict.FAIL), _count(findings, Verdict.WARN)
    counts = [f"{failed} failed"] * bool(failed) + [f"{warned} to look at"] * bool(warned)
    yield f"{len(findings)} checks: {', '.join(counts) or 'all well'}"


def failures(findings: Sequence[Finding]) -> int:
    """Return how many checks failed."""
    return _count(findings, Verdict.FAIL)


def worst(findings: Sequence[Finding]) -> Verdict:
    """Return fail, warn or ok; what was not seen counts as neither good nor bad."""
    found = {item.verdict for item in findings}
    return next((item for item in (Verdict.FAIL, Verdict.WARN) if item in found), Verdict.OK)


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings by group; within a group in the order in which they came."""
    return sorted(findings, key=lambda item: GROUPS.index(item.group))


def _count(findings: Sequence[Finding], verdict: Verdict) -> int:
    return sum(item.verdict is verdict for item in findings)
