"""A container's output as lines, each with the process that wrote it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE_BYTES = 8192
"""What a line has beyond this is dropped: a progress bar without line ends must not fill memory."""

_SEPARATOR = re.compile(rb"[\r\n]")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
_ORIGIN = re.compile(
    r"^\((?P<origin>[A-Za-z][\w.-]{0,64}?)(?P<rank>_[A-Z]{1,16}\d\w{0,32})?(?: pid=\d+)?"
    r"(?P<node>, ip=[\w.:]{1,64})?\) ?"
)
# Ray puts a prefix of its own before or after vLLM's.
_ORIGINS = re.compile(r"^(?:\([A-Za-z][^()]*\) ?)+")
_MOST_ORIGINS = 2
_HEAD = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d"
    r"(?:[.,]\d{1,9})? \[[^\]]+\] ?"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    text: str
    origin: str = ""
    """The process that wrote it as vLLM names it (`EngineCore`, `APIServer`), or nothing."""
    level: str = ""
    """INFO, WARNING, ERROR...; nothing for a line that no logger wrote."""


@dataclass(slots=True)
class LineSplitter:
    r"""Cuts bytes into lines at `\r` and `\n`, wherever the chunks happen to end.

    Holds at most one unfinished line. Empty lines are dropped.
    """

    _open: bytearray = field(default_factory=bytearray, init=False)

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the lines that this chunk finishes, without terminal codes."""
        *finished, rest = _SEPARATOR.split(chunk)
        for piece in finished:
            self._append(piece)
            text = self.unfinished()
            self._open.clear()
            if text:
                yield text
        self._append(rest)

    def unfinished(self) -> str:
        """Return the line that has begun and not ended, without terminal codes."""
        return without_codes(self._open.decode(errors="replace")).rstrip()

    def _append(self, piece: bytes) -> None:
        self._open += piece[: MAX_LINE_BYTES - len(self._open)]


def without_codes(text: str) -> str:
    return _ANSI.sub("", text)


GUARD_MARK = "sparkdeploy-guard: "


def guard_report(text: str) -> dict[str, Any]:
    """Return what the guard says on a line; empty for a line that is not the guard's.

    Its lines begin with its mark. The mark anywhere else is a quotation, such as a prompt that
    vLLM logs, and a line with a process's name or a level is from a logger of vLLM's. vLLM
    shares the guard's output and could write the mark as well: lines explain, they decide nothing.
    """
    if not text.startswith(GUARD_MARK):
        return {}
    try:
        report = json.loads(text.removeprefix(GUARD_MARK))
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def message_of(text: str) -> str:
    return _HEAD.sub("", _ORIGINS.sub("", text))


def lines_of(log: bytes | str) -> list[str]:
    """Return a whole log's lines, without terminal codes and the empty ones."""
    raw = log.encode(errors="replace") if isinstance(log, str) else log
    return list(LineSplitter().feed(raw + b"\n"))


def read_line(text: str) -> LogLine:
    origin = ""
    for _ in range(_MOST_ORIGINS):
        if match := _ORIGIN.match(text):
            origin += "".join(part or "" for part in match.groups())
            text = text[match.end() :]
    level = ""
    if match := _HEAD.match(text):
        level = match["level"]
        text = text[match.end() :]
    return LogLine(text, origin, level)
