"""Why a container died, as its log and the way it ended tell."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import yaml_text
from sparkdeploy.console import format_gib
from sparkdeploy.node.container import EXIT_IDLE
from sparkdeploy.server.log_lines import LogLine, guard_payload, lines_of, read_line
from sparkdeploy.server.nccl import is_chatter, is_told_by_nccl

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SIGNATURES = Path(__file__).parent / "signatures.yaml"
EXIT_MEMORY_FLOOR = 86
"""How the guard ends a container when memory runs out, and nothing else: a vLLM that ends itself
with 86 becomes 1. No line that vLLM writes counts as a trip.
"""
MEMORY_FLOOR = "memory_floor"
EXIT_STALLED = 87
"""How the guard ends a container, or vLLM in it, when the engine hangs; again its own alone."""
STALLED = "stalled"
MOST_RESTARTS = 1000
"""A count beyond this is not the guard's, whose orders allow three."""
_GUARD_FAILURE = re.compile(r'"event": "(?:cannot_run|refused)"')
_SERVES = "Application startup complete"
_QUIET_LEVELS = {"DEBUG", "INFO", "WARNING"}
_FAILURE_WORDS = re.compile(r"(?i)\berror\b|\bfatal\b|\bfailed\b|\bpanic\b|exception|core dumped")

_EXIT_MEANINGS = {
    125: "Docker could not start it",
    126: "its command may not be executed",
    127: "its command was not found",
    132: "it ran an instruction this processor does not have (SIGILL)",
    134: "it aborted itself (SIGABRT)",
    135: "it accessed memory that a file no longer backs (SIGBUS)",
    136: "an arithmetic fault ended it (SIGFPE)",
    137: "something killed it (SIGKILL)",
    139: "it crashed in native code (SIGSEGV)",
    143: "it was told to stop (SIGTERM)",
}
_SIGNAL_EXITS = {code for code in _EXIT_MEANINGS if code > 128}
"""Deaths that leave no traceback: one found in the log is of something else, survived."""
_EXIT_HINTS = {
    132: "this engine's wheel needs newer instructions (AVX-512 or AVX2); use another machine",
    135: "its shared memory is full, or a mapped model file was cut; verify the checkpoint",
    137: "if nobody stopped it, the kernel did: `sudo dmesg | grep -i oom`",
}
_MAX_TRACEBACK_LINES = 200
_START = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*|:)?$")
_ECHOES = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore encountered an issue"
    r"|WorkerProc initialization failed|Failed core proc|Engine process failed to start"
    r"|^SystemExit|^KeyboardInterrupt|^asyncio\.exceptions\.CancelledError"
)


@dataclass(frozen=True, slots=True)
class Signature:
    """A cause that can be recognised by one line of the log."""

    name: str
    pattern: str
    meaning: str
    hint: str
    is_certain: bool = True
    """False for words that also occur in harmless tracebacks; those need the fatal one."""
    beside: str = ""
    """What another line has to say as well; empty where one line is enough."""


@functools.cache
def signatures() -> tuple[Signature, ...]:
    """Return what signatures.yaml says, in its order; it is a part of the program."""
    rows = yaml_text.load_file(SIGNATURES)
    return tuple(Signature(pattern="|".join(row.pop("says")), **row) for row in rows)


@dataclass(frozen=True, slots=True)
class Cause:
    """The root cause: its name in the table of signatures, the line, its meaning, how to fix it."""

    name: str
    line: str
    meaning: str
    hint: str | None = None

    def describe(self) -> str:
        return f"{self.meaning}: {self.line}" if self.line else self.meaning


@dataclass(frozen=True, slots=True)
class EndOfRun:
    """How vLLM ended inside a container that runs on."""

    log: str
    """Up to its end."""
    exit_code: int | None
    cause: Cause


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often the guard started vLLM again in its container, and why the last time."""

    count: int = 0
    cause: Cause | None = None


_GUARD_STOPPED = Cause(
    MEMORY_FLOOR,
    "",
    "the memory guard stopped it before the machine could freeze",
    "stop other programs, or lower serve.gpu_memory_utilization or serve.max_model_len",
)
_GUARD_SAW_NO_WORK = Cause(
    STALLED,
    "",
    "its engine stalled: it had requests and moved nothing, while /health said all is well",
    "the log has the stacks of its processes; `sparkdeploy diagnose` packs them for a bug report",
)
_NOBODY_ASKED = Cause(
    "idle",
    "",
    "nobody asked it anything for as long as limits.idle_stop_s says, so it stopped itself",
    "`sparkdeploy start` starts it again",
)
_KERNEL_KILLED = Cause(
    "oom_killed",
    "",
    "the kernel killed it because memory ran out",
    "stop other programs, or lower serve.gpu_memory_utilization",
)


def root_cause(log: str, exit_code: int | None, *, oom_killed: bool) -> Cause:
    """Say why a container died, from its log's end and how it ended. Never fails to answer.

    What Docker says of the end goes before what the log says: whatever runs in the container can
    write any line. That the guard ended it is known by its exit code alone.
    """
    if exit_code == EXIT_MEMORY_FLOOR:
        return replace(_GUARD_STOPPED, line=_memory_left(log))
    if exit_code == EXIT_STALLED:
        return replace(_GUARD_SAW_NO_WORK, line=_what_stood_still(log))
    if exit_code == EXIT_IDLE:
        return _NOBODY_ASKED
    if oom_killed:
        return _KERNEL_KILLED
    lines = [read_line(text) for text in lines_of(log)]
    # All before the server was up, if it ever was, it has survived.
    served = [index for index, line in enumerate(lines) if _SERVES in line.text]
    recent = lines[served[-1] + 1 :] if served else lines
    return _log_cause(recent, by_signal=exit_code in _SIGNAL_EXITS) or _exit_cause(exit_code)


def guard_reports(log: str) -> list[dict[str, Any]]:
    """Return the guard's lines, oldest first, without broken ones.

    Any process of its container can write such a line: they explain, and decide nothing.
    """
    return [report for report in map(_guard_report, lines_of(log)) if report is not None]


def _guard_report(text: str) -> dict[str, Any] | None:
    payload = guard_payload(text)
    if payload is None:
        return None
    try:
        report = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) else None


def guard_events(log: str, exit_code: int | None) -> list[str]:
    """Return the events that the guard told of, each once, without a memory trip that did not end
    it."""
    events = dict.fromkeys(str(report.get("event")) for report in guard_reports(log))
    return [event for event in events if event != MEMORY_FLOOR or exit_code == EXIT_MEMORY_FLOOR]


def restarts_in(log: str) -> Restarts:
    """Say how often the guard started vLLM again, and why the last time, from a log's end."""
    told = [report for report in guard_reports(log) if report.get("event") == "restart"]
    if not told:
        return Restarts()
    # The guard counts them itself: earlier ones may stand above the part of the log that is read.
    number = told[-1].get("restart")
    count = number if isinstance(number, int) and number <= MOST_RESTARTS else 0
    return Restarts(max(count, len(told)), end_before_restart(log).cause)


def end_before_restart(log: str) -> EndOfRun:
    """Say how vLLM ended before the guard's last restart; without one, how the log ends."""
    lines, exit_code = lines_of(log), None
    for index, text in reversed(list(enumerate(lines))):
        report = _guard_report(text)
        if report is not None and report.get("event") == "restart":
            code = report.get("exit_code")
            log, exit_code = "\n".join(lines[:index]), code if isinstance(code, int) else None
            break
    # After a memory trip the guard starts nothing again: this code is vLLM's own.
    own = None if exit_code == EXIT_MEMORY_FLOOR else exit_code
    return EndOfRun(log, exit_code, root_cause(log, own, oom_killed=False))


def log_tail(log: str, line_count: int) -> str:
    """Return a log's last lines without NCCL's talk, progress bars and terminal codes undone."""
    lines = [line for line in lines_of(log) if not is_chatter(line)]
    return "\n".join(lines[-line_count:])


def _told(log: str, event: str) -> list[dict[str, Any]]:
    return [report for report in guard_reports(log) if report.get("event") == event]


def _what_stood_still(log: str) -> str:
    told = _told(log, STALLED)
    if not told:
        return ""
    if "canary_unanswered_s" in told[-1]:
        waited_s = told[-1].get("waited_s")
        who = "idle" if waited_s is None else f"a client waited for {waited_s} s"
        return f"{who}, and a token asked for did not come in {told[-1]['canary_unanswered_s']} s"
    running, still_s = told[-1].get("running"), told[-1].get("still_s")
    return f"{running} requests running, no token and no cache moved for {still_s} s"


def _memory_left(log: str) -> str:
    trips = _told(log, MEMORY_FLOOR)
    if not trips:
        return ""
    available, floor = _gib(trips[-1], "mem_available_bytes"), _gib(trips[-1], "floor_bytes")
    return f"{available} were available, the floor is {floor}"


def _gib(report: Mapping[str, Any], key: str) -> str:
    value = report.get(key)
    try:
        return format_gib(value) if isinstance(value, int | float) else "?"
    except OverflowError:
        return "?"


def _log_cause(lines: Sequence[LogLine], *, by_signal: bool) -> Cause | None:
    """Signatures of two lines, the fatal traceback by signature, certain signatures anywhere,
    the traceback as it is, last words.
    """
    suspects = [line.text for line in lines if _is_suspect(line)]
    if by_two := _by_two_lines(lines):
        return by_two
    known = [signature for signature in signatures() if not signature.beside]
    certain = [signature for signature in known if signature.is_certain]
    if by_signal:
        return _by_signature(suspects, certain)
    trace = decisive(tracebacks(lines))
    words = Cause("exception", trace.exceptions[0], "the engine failed") if trace else None
    fatal = trace.exceptions + trace.lines if trace and not trace.is_echo else []
    return (
        _by_signature(fatal, known)
        or _by_signature(suspects, certain)
        or words
        or _by_signature(suspects, known)
        or _last_words(lines)
    )


def _is_suspect(line: LogLine) -> bool:
    if is_chatter(line.text):
        return False
    payload = None if line.origin or line.level else guard_payload(line.text)
    if payload is not None:
        return _GUARD_FAILURE.search(payload) is not None
    return line.level not in _QUIET_LEVELS


def _by_two_lines(lines: Sequence[LogLine]) -> Cause | None:
    """Find a cause in NCCL's own words that other words prove, whatever the level of those."""
    own = [line.text for line in lines if not line.level and is_told_by_nccl(line.text)]
    told = [
        signature
        for signature in signatures()
        if signature.beside and any(re.search(signature.beside, line.text) for line in lines)
    ]
    return _by_signature(own, told)


def _by_signature(texts: Sequence[str], known: Iterable[Signature]) -> Cause | None:
    for signature in known:
        pattern = re.compile(signature.pattern)
        for text in texts:
            if pattern.search(text):
                return Cause(signature.name, text.strip(), signature.meaning, signature.hint)
    return None


def _last_words(lines: Sequence[LogLine]) -> Cause | None:
    suspects = [line for line in lines if _is_suspect(line)]
    loud = [line.text for line in suspects if line.level]
    spoken = [line.text for line in suspects if _FAILURE_WORDS.search(line.text)]
    words = loud or spoken
    return Cause("last_error", words[-1].strip(), "the log's last error") if words else None


def _exit_cause(exit_code: int | None) -> Cause:
    if exit_code in _EXIT_MEANINGS:
        return Cause(f"exit_{exit_code}", "", _EXIT_MEANINGS[exit_code], _EXIT_HINTS.get(exit_code))
    return Cause("unknown", "", "its log names no cause")


@dataclass(slots=True)
class Traceback:
    """One traceback with its chain of exceptions, the cause first."""

    origin: str
    exceptions: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    _is_in_frames: bool = True

    @property
    def is_echo(self) -> bool:
        """Say whether it only repeats that another process failed."""
        return all(_ECHOES.search(exception) for exception in self.exceptions)

    def begin(self, text: str) -> None:
        self.lines.append(text)
        self._is_in_frames = True

    def takes(self, line: LogLine) -> bool:
        """Read a line of the same process on; False when it is none of the traceback's."""
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
        elif text and trace is not None and not trace.takes(line):
            del unfinished[line.origin]
    return [trace for trace in found if trace.exceptions]


def decisive(traces: Iterable[Traceback]) -> Traceback | None:
    """Return the traceback that says why: the last that is no echo of another process."""
    all_traces = list(traces)
    own = [trace for trace in all_traces if not trace.is_echo] or all_traces[:1]
    return own[-1] if own else None
