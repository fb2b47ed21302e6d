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
class Trace:
    """One traceback with its chain of exceptions, the cause first."""

    origin: str
    exceptions: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    position: int = 0
    """The number of the line it began on."""

    @property
    def is_echo(self) -> bool:
        """Say whether it only repeats that another process failed."""
        return all(_ECHOES.search(exception) for exception in self.exceptions)


def tracebacks(lines: Iterable[LogLine]) -> list[Trace]:
    """Return every traceback that has an exception line, in order of appearance."""
    reader = _Reader()
    for position, line in enumerate(lines):
        reader.read(line, position)
    return [trace for trace in reader.found if trace.exceptions]


def decisive(traces: Iterable[Trace]) -> Trace | None:
    """Return the traceback that says why: the last that is no echo of another process."""
    all_traces = list(traces)
    own = [trace for trace in all_traces if not trace.is_echo]
    if own:
        return own[-1]
    return all_traces[0] if all_traces else None


@dataclass(slots=True)
class _Reader:
    found: list[Trace] = field(default_factory=list)
    _open: dict[str, Trace] = field(default_factory=dict)
    _in_frames: dict[str, bool] = field(default_factory=dict)

    def read(self, line: LogLine, position: int) -> None:
        if not line.text.strip():
            return
        trace = self._open.get(line.origin)
        if line.text.strip() == _START:
            self._begin(line, trace, position)
        elif trace is not None:
            self._continue(trace, line)

    def _begin(self, line: LogLine, trace: Trace | None, position: int) -> None:
        chained = trace is not None and trace.lines and trace.lines[-1].startswith(_CHAIN)
        if trace is None or not chained:
            trace = Trace(line.origin, position=position)
            self.found.append(trace)
            self._open[line.origin] = trace
        trace.lines.append(line.text)
        self._in_frames[line.origin] = True

    def _continue(self, trace: Trace, line: LogLine) -> None:
        if self._in_frames[line.origin]:
            trace.lines.append(line.text)
            if line.text and not line.text[0].isspace():
                self._in_frames[line.origin] = False
                if _EXCEPTION.match(line.text):
                    trace.exceptions.append(line.text)
        elif line.level in _LOUD and len(trace.lines) < _MAX_LINES:
            trace.lines.append(line.text)
        else:
            del self._open[line.origin]
