"""Why a container died, by its exit code and its log."""

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.node.container import EXIT_IDLE
from sparkdeploy.server.log_lines import (
    GUARD_MARK,
    LogLine,
    guard_report,
    is_from_nccl,
    is_nccl_info,
    lines_of,
    read_line,
)
from sparkdeploy.units import format_gib

EXIT_MEMORY_FLOOR = 86
EXIT_STALLED = 87
HUNG_RANK = "rank_stopped"
"""The signature of a rank that waited for another in vain."""
_GUARD_EXITS = {EXIT_MEMORY_FLOOR, EXIT_STALLED, EXIT_IDLE}
_FIRST_SIGNAL_EXIT = 129
"""Deaths by a signal leave no traceback: one found in the log is of something else, survived."""
_GUARD_FAILURES = ("cannot_run", "refused")
_SERVES = "Application startup complete"
_QUIET_LEVELS = {"DEBUG", "INFO", "WARNING"}
_FAILURE_WORDS = re.compile(r"(?i)\berror\b|\bfatal\b|\bfailed\b|\bpanic\b|exception|core dumped")
_MAX_TRACEBACK_LINES = 200
_START = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*|:)?$")
_VALIDATION = re.compile(r"ValidationError: \d{1,6} validation errors? for ")
_VALUE_ERROR, _END_OF_SENTENCE = "Value error, ", " [type="
_MAX_SENTENCE_LINES = 20
_ECHOES = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore encountered an issue"
    r"|WorkerProc initialization failed|Failed core proc|Engine process failed to start"
    r"|^SystemExit|^KeyboardInterrupt|^asyncio\.exceptions\.CancelledError"
)


@dataclass(frozen=True, slots=True)
class Signature:
    """A cause that can be recognised by one line of the log: a row of signatures.yaml."""

    name: str
    pattern: str
    meaning: str
    hint: str
    is_certain: bool = True
    """False for words that also occur in harmless tracebacks; those need the fatal one."""
    is_consequence: bool = False
    """True for words that other faults lead to as well; those are named before it."""
    beside: str = ""
    """A pattern that another line has to match as well; empty where one line is enough."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The root cause: its name in one of the tables, the line that shows it, how to fix it."""

    name: str
    meaning: str
    line: str = ""
    hint: str | None = None

    def describe(self) -> str:
        return f"{self.meaning}: {self.line}" if self.line else self.meaning


@functools.cache
def signatures() -> tuple[Signature, ...]:
    """Return the rows of signatures.yaml in their order; the file is a part of the program."""
    rows = yaml_text.load_file(Path(__file__).with_name("signatures.yaml"))
    return tuple(Signature(pattern="|".join(row.pop("says")), **row) for row in rows)


@functools.cache
def _exit_causes() -> Mapping[int | str | None, Cause]:
    rows = yaml_text.load_file(Path(__file__).with_name("exit_codes.yaml"))
    return {row.pop("code"): Cause(**row) for row in rows}


def root_cause(log: str, exit_code: int | None, *, oom_killed: bool) -> Cause:
    """Return why a container died, from its log's end and how it ended; never fails."""
    # Docker's state goes before the log: whatever runs in the container can write any line.
    by_code = _exit_causes().get(exit_code, Cause("unknown", "its log names no cause"))
    if exit_code in _GUARD_EXITS:
        reports = [it for it in guard_reports(log) if it.get("event") == by_code.name]
        return replace(by_code, line=_describe_report(reports[-1])) if reports else by_code
    if oom_killed:
        return _exit_causes()["oom"]
    lines = [read_line(text) for text in lines_of(log)]
    # It survived everything before its server was up, if that ever was.
    served = [index for index, line in enumerate(lines) if _SERVES in line.text]
    recent = lines[served[-1] + 1 :] if served else lines
    by_signal = exit_code in _exit_causes() and (exit_code or 0) >= _FIRST_SIGNAL_EXIT
    return _log_cause(recent, by_signal=by_signal) or by_code


def guard_reports(log: str) -> list[dict[str, Any]]:
    """Return the guard's lines, oldest first: any process can write one, so they decide nothing."""
    return [report for report in map(guard_report, lines_of(log)) if report]


def guard_events(log: str, exit_code: int | None) -> list[str]:
    """Return the guard's events, each once, without a memory trip that did not end it."""
    events = dict.fromkeys(str(report.get("event")) for report in guard_reports(log))
    return [it for it in events if it != "memory_floor" or exit_code == EXIT_MEMORY_FLOOR]


def end_before_restart(log: str) -> tuple[str, int | None, Cause]:
    """Return what vLLM wrote before the guard's last restart, its exit code and the cause."""
    lines, exit_code = lines_of(log), None
    for index, text in reversed(list(enumerate(lines))):
        report = guard_report(text)
        if report.get("event") == "restart":
            code = report.get("exit_code")
            log, exit_code = "\n".join(lines[:index]), code if isinstance(code, int) else None
            break
    # After a memory trip the guard starts nothing again: this code is vLLM's own.
    own = None if exit_code == EXIT_MEMORY_FLOOR else exit_code
    return log, exit_code, root_cause(log, own, oom_killed=False)


def log_tail(log: str, line_count: int) -> str:
    lines = [line for line in lines_of(log) if not is_nccl_info(line)]
    return "\n".join(lines[-line_count:])


def _describe_report(report: Mapping[str, Any]) -> str:
    if report["event"] == "memory_floor":
        available, floor = _gib(report, "mem_available_bytes"), _gib(report, "floor_bytes")
        if "driver" in report:
            return f"the GPU's driver got no memory (NV_ERR_NO_MEMORY); {available} were available"
        return f"{available} were available, the floor is {floor}"
    if report["event"] != "stalled":
        return ""
    if "canary_unanswered_s" in report:
        waited_s = report.get("waited_s")
        who = "idle" if waited_s is None else f"a client waited for {waited_s} s"
        return f"{who}, and a probe for one token got none in {report['canary_unanswered_s']} s"
    running, still_s = report.get("running"), report.get("still_s")
    return f"{running} requests running, no token and no cache block moved for {still_s} s"


def _gib(report: Mapping[str, Any], key: str) -> str:
    value = report.get(key)
    try:
        return format_gib(value) if isinstance(value, int | float) else "?"
    except OverflowError:
        return "?"


def _log_cause(lines: Sequence[LogLine], *, by_signal: bool) -> Cause | None:
    """Signatures of two lines, the fatal traceback by signature, certain signatures anywhere,
    what is only the consequence of others, the traceback as it is, last words.
    """
    if by_two := _by_two_lines(lines):
        return by_two
    suspects = [line for line in lines if _is_suspect(line)]
    texts = [line.text for line in suspects]
    known = [it for it in signatures() if not (it.beside or it.is_consequence)]
    certain = [signature for signature in known if signature.is_certain]
    consequences = [signature for signature in signatures() if signature.is_consequence]
    if by_signal:
        return _by_signature(texts, [*certain, *consequences])
    logged = [line.text for line in suspects if line.level]
    errors = logged or [text for text in texts if _FAILURE_WORDS.search(text)]
    trace = decisive(tracebacks(lines))
    is_own = trace is not None and not trace.is_echo
    fatal = trace.exceptions + trace.lines if trace and is_own else []
    failed = Cause("exception", "the engine failed", trace.sentence) if trace and is_own else None
    return (
        _by_signature(fatal, known)
        or _by_signature(texts, certain)
        or _by_signature([*fatal, *texts], [it for it in consequences if it.is_certain])
        or _by_signature(_rejoined(fatal), known)
        or failed
        or _by_signature(texts, consequences)
        or (Cause("last_error", "the log's last error", errors[-1].strip()) if errors else None)
    )


def _is_suspect(line: LogLine) -> bool:
    if is_nccl_info(line.text):
        return False
    if line.text.startswith(GUARD_MARK) and not (line.origin or line.level):
        return guard_report(line.text).get("event") in _GUARD_FAILURES
    return line.level not in _QUIET_LEVELS


def _by_two_lines(lines: Sequence[LogLine]) -> Cause | None:
    """Return a cause in NCCL's own lines that another line proves, whatever its level."""
    own = [line.text for line in lines if not line.level and is_from_nccl(line.text)]
    proven = [
        signature
        for signature in signatures()
        if signature.beside and any(re.search(signature.beside, line.text) for line in lines)
    ]
    return _by_signature(own, proven)


def _rejoined(lines: Sequence[str]) -> list[str]:
    """Return each line with the next one: whoever prints to a narrow terminal breaks them."""
    pairs = ((it, after) for it, after in itertools.pairwise(lines) if not it[0].isspace())
    return [f"{first.rstrip()} {rest.strip()}" for first, rest in pairs]


def _by_signature(texts: Sequence[str], known: Iterable[Signature]) -> Cause | None:
    for signature in known:
        pattern = re.compile(signature.pattern)
        for text in texts:
            if pattern.search(text):
                return Cause(signature.name, signature.meaning, text.strip(), signature.hint)
    return None


@dataclass(slots=True)
class Traceback:
    origin: str
    exceptions: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    _is_in_frames: bool = True

    @property
    def is_echo(self) -> bool:
        return all(_ECHOES.search(exception) for exception in self.exceptions)

    @property
    def sentence(self) -> str:
        """Return the first exception; of pydantic's what a validator says, beneath its count."""
        first = self.exceptions[0]
        at = self.lines.index(first) + 1
        below = self.lines[at : at + _MAX_SENTENCE_LINES]
        if not below or not _VALIDATION.search(first):
            return first
        # The field stands on a line of its own, and the words below it, indented.
        field_path = "" if below[0][0].isspace() else f"{below[0].strip()}: "
        words = " ".join(line.strip() for line in below[bool(field_path) :])
        said, end, _ = words.partition(_END_OF_SENTENCE)
        if not end:
            return first
        is_whole = said.startswith(_VALUE_ERROR)
        return said.removeprefix(_VALUE_ERROR) if is_whole else field_path + said

    def begin(self, text: str) -> None:
        self.lines.append(text)
        self._is_in_frames = True

    def add(self, line: LogLine) -> bool:
        if not self._is_in_frames:
            if line.level in _QUIET_LEVELS or len(self.lines) >= _MAX_TRACEBACK_LINES:
                return False
        elif not line.text[0].isspace():
            self._is_in_frames = False
            if _EXCEPTION.match(line.text):
                self.exceptions.append(line.text)
        self.lines.append(line.text)
        return True


def tracebacks(lines: Iterable[LogLine]) -> list[Traceback]:
    """Return every traceback that has an exception line, in order of appearance."""
    found: list[Traceback] = []
    unfinished: dict[str, Traceback] = {}
    for line in lines:
        text = line.text.strip()
        trace = unfinished.get(line.origin)
        if text == _START:
            if trace is None or not trace.lines[-1].startswith(_CHAIN):
                trace = unfinished[line.origin] = Traceback(line.origin)
                found.append(trace)
            trace.begin(line.text)
        elif text and trace is not None and not trace.add(line):
            del unfinished[line.origin]
    return [trace for trace in found if trace.exceptions]


def decisive(traces: Iterable[Traceback]) -> Traceback | None:
    """Return the last traceback that is no echo of another process; else the first."""
    all_traces = list(traces)
    own = [trace for trace in all_traces if not trace.is_echo] or all_traces[:1]
    return own[-1] if own else None
