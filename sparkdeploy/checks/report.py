"""Findings as printed lines and as JSON values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkdeploy.checks.finding import Verdict
from sparkdeploy.terminal.style import Piece, Style, line_of
from sparkdeploy.terminal.tables import Fill, TextColumn, TextTable, row_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.terminal.style import Line
    from sparkdeploy.terminal.tables import Block, TextRow

GROUPS = (
    "machine",
    "gpu",
    "docker",
    "image",
    "folders",
    "model",
    "ports",
    "network",
    "cluster",
    "deployments",
    "recipe",
)
"""In the order in which they are shown."""
SIGNS = {Verdict.OK: "=", Verdict.WARN: "!", Verdict.FAIL: "x", Verdict.NOT_SEEN: "?"}
SIGN_INKS = {"=": Style.GOOD, "!": Style.CAUTION, "x": Style.BAD, "?": Style.CAUTION}
MEANINGS = {
    "=": "ok, nothing to do",
    "+": "build",
    "v": "download",
    "*": "prepare",
    ">": "start",
    "~": "replace",
    "!": "warning",
    "x": "blocks the start",
    "?": "not seen",
}
"""The meaning of each sign that may begin a line of a report."""


EXPLAINED = {
    "kho": "kernel handover, memory that Linux keeps aside for a next kernel",
    "strain": "the GPU's load beside its clock, heat and power",
    "xids": "numbered errors of NVIDIA's driver",
    "fabric": "the network cards by which Sparks reach each other",
    "exchange": "folders in which another user could change files",
}
"""Names of checks that say nothing to whoever meets them first."""


def legend(signs: Iterable[str]) -> str:
    """Return one line that says what these signs mean, each once."""
    used = set(signs)
    return "  ".join(f"{sign} {meaning}" for sign, meaning in MEANINGS.items() if sign in used)


def as_dict(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return a report: `verdict` is the worst of all, `checks` every finding in order."""
    found = {item.verdict for item in findings}
    worst = next((item for item in (Verdict.FAIL, Verdict.WARN) if item in found), Verdict.OK)
    return {
        "schema": 1,
        "verdict": worst.value,
        "checks": [
            {
                "check": item.check,
                "verdict": item.verdict.value,
                "seen": item.seen,
                "fix": item.fix,
                "group": item.group,
            }
            | ({"node": item.node} if item.node else {})
            for item in _in_order(findings)
        ],
    }


def lines(findings: Sequence[Finding]) -> Iterator[Block]:
    """Yield one row a check, by group, the fix beneath where one is needed, and a summary."""
    rows: list[TextRow | Line] = []
    group = ""
    for item in _in_order(findings):
        if item.group != group:
            group = item.group
            rows.append(line_of(Piece(group, Style.STRONG)))
        rows.append(_row(item))
    yield TextTable((TextColumn(), TextColumn("", Fill.WORDS)), tuple(rows), indent=2)
    yield legend(SIGNS[item.verdict] for item in findings)
    names = {item.check.rpartition(".")[2] for item in findings}
    if words := [f"{name}: {what}" for name, what in EXPLAINED.items() if name in names]:
        yield "; ".join(words)
    failed, warned = failures(findings), sum(item.verdict is Verdict.WARN for item in findings)
    counts = [f"{failed} failed"] * bool(failed) + [f"{warned} with a warning"] * bool(warned)
    yield f"{len(findings)} checks: {', '.join(counts) or 'all ok'}"


def finding_lines(findings: Iterable[Finding]) -> Iterator[Line | str]:
    """Yield a line of each with its sign, and one of its fix."""
    for item in findings:
        ink = Style.BAD if item.verdict is Verdict.FAIL else Style.PLAIN
        yield line_of("  ", signed(SIGNS[item.verdict]), " ", Piece(item.seen, ink))
        if item.fix:
            yield f"      fix: {item.fix}"


def _row(item: Finding) -> TextRow:
    name = item.check.partition(".")[2]
    seen = Piece(item.seen, Style.BAD if item.verdict is Verdict.FAIL else Style.PLAIN)
    fix = [f"      fix: {item.fix}"] if item.fix else []
    return row_of(line_of(signed(SIGNS[item.verdict]), f" {name}"), seen, beneath=fix)


def signed(sign: str) -> Piece:
    """Return a sign in the colour of its meaning."""
    return Piece(sign, SIGN_INKS.get(sign, Style.PLAIN))


def failures(findings: Sequence[Finding]) -> int:
    return sum(item.verdict is Verdict.FAIL for item in findings)


def _in_order(findings: Sequence[Finding]) -> list[Finding]:
    """Return them by group; within a group the order stays."""
    return sorted(findings, key=lambda finding: GROUPS.index(finding.group))
