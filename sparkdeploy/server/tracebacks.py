"""Python tracebacks in a log that several processes write at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.server.log_lines import LogLine

_MAX_LINES = 200
_LOUD = {"", "ERROR", "CRITICAL"}
_START = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:: .*|:)?$")
_ECHOES = re.compile(
    r"Engine core initialization failed|EngineDeadError|EngineCore encountered an issue"
    r"|WorkerProc initialization failed|Failed core proc|Engine process failed to start"
    r"|^SystemExit|^KeyboardInterrupt|^asyncio\.exceptions\.CancelledError"
)


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
            if line.level not in _LOUD or len(self.lines) >= _MAX_LINES:
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
