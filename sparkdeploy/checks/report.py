"""Findings as printed lines and as JSON values."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from sparkdeploy.errors import Mistakes, NodeError
from sparkdeploy.terminal.style import Line, Piece, Style, line_of
from sparkdeploy.terminal.tables import Block, Fill, TextColumn, TextRow, TextTable, row_of


class Verdict(Enum):
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
    """Return what a check of one node saw; a result of False fails, others give their verdict."""
    verdict = result if isinstance(result, Verdict) else Verdict.OK if result else Verdict.FAIL
    if verdict is Verdict.OK:
        return Finding(f"cluster.{check}", verdict, f"{node}: {seen}", node=node)
    wanted = f", expected {expected}" if expected else ""
    return Finding(f"cluster.{check}", verdict, f"{node}: {seen}{wanted}", fix or None, node=node)


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
TO_LOOK_AT = (Verdict.WARN, Verdict.FAIL)
"""What stands last, where a terminal has stopped."""


def legend(signs: Iterable[str]) -> str:
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
    """Yield one row a check, by group, then what to look at with its fix, and a summary."""
    rows: list[TextRow | Line] = []
    group = ""
    ordered = _in_order(findings)
    for item in (it for it in ordered if it.verdict not in TO_LOOK_AT):
        if item.group != group:
            group = item.group
            rows.append(line_of(Piece(group, Style.STRONG)))
        rows.append(_row(item, item.check.partition(".")[2]))
    if found := [it for verdict in TO_LOOK_AT for it in ordered if it.verdict is verdict]:
        rows.append(line_of(Piece("to look at", Style.STRONG)))
        rows += (_row(it, it.check) for it in found)
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


def _row(item: Finding, name: str) -> TextRow:
    seen = Piece(item.seen, Style.BAD if item.verdict is Verdict.FAIL else Style.PLAIN)
    fix = [f"      fix: {item.fix}"] if item.fix else []
    return row_of(line_of(signed(SIGNS[item.verdict]), f" {name}"), seen, beneath=fix)


def signed(sign: str) -> Piece:
    return Piece(sign, SIGN_INKS.get(sign, Style.PLAIN))


def refusal(what: str, findings: Sequence[Finding]) -> NodeError:
    """Return the error with all that stands in the way of something, each with its fix."""
    lines = [line for it in findings for line in (it.seen, f"    fix: {it.fix}")]
    return NodeError(f"{what}, for {_reasons(findings)}", detail=Mistakes("\n".join(lines)))


def require_none(problems: Sequence[Finding]) -> None:
    """Raise NodeError after a plan has been printed that `up` would refuse."""
    if problems:
        message = f"`up` would refuse this, for {_reasons(problems)}"
        raise NodeError(message, hint="the lines with x say why")


def _reasons(findings: Sequence[Finding]) -> str:
    return "1 reason" if len(findings) == 1 else f"{len(findings)} reasons"


def failures(findings: Sequence[Finding]) -> int:
    return sum(item.verdict is Verdict.FAIL for item in findings)


def _in_order(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: GROUPS.index(finding.group))
