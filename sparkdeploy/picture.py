"""Lines at the lower end of a terminal that are drawn again and again, and leave nothing behind.

What this process writes meanwhile, whoever writes it, goes above them. The cursor stays visible in
the row below the picture: a process that is killed or stopped leaves the terminal as it was.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, TextIO, cast

from sparkdeploy.paper import cells_of, painted
from sparkdeploy.terminal import beneath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sparkdeploy.ink import Line

LOOK_EVERY_S = 0.25
"""How often it is looked whether anything has changed."""
USUAL_SIZE = os.terminal_size((80, 24))
MOST_CELLS = 79
"""Of a line of the picture. What is longer than a terminal that is made narrower gets wrapped; tmux
does so a quarter of a second before it tells the new size, and a picture drawn in between would
begin in the wrong row. Of a terminal with 80 columns no line is wrapped."""
UNENDING = 100_000
"""Cells: a line that stays is wrapped by the terminal, and cut nowhere."""
_PLAINER = str.maketrans("█░✓✗▸·…", "#-+x>..")


def size_of(stream: TextIO) -> os.terminal_size:
    """Return a terminal's columns and rows as they are now."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return USUAL_SIZE
    return size if size.columns and size.lines else USUAL_SIZE


def encodable(text: str, stream: TextIO) -> str:
    """Return what a terminal of another encoding than UTF-8 shows of a text."""
    encoding = stream.encoding or "utf-8"
    if "utf" in encoding.lower():
        return text
    return text.translate(_PLAINER).encode(encoding, "replace").decode(encoding)


def rows_taken(cells: Iterable[int], columns: int) -> int:
    """Return how many rows lines of so many cells take, once a terminal has wrapped them."""
    return sum(max(1, -(-count // columns)) for count in cells)


@dataclass(slots=True)
class Picture:
    """A context manager: while it is open, `compose` says what is shown on how many rows."""

    stream: TextIO
    compose: Callable[[os.terminal_size], list[Line]]
    measure: Callable[[TextIO], os.terminal_size] = size_of
    _drawn: list[tuple[str, int]] = field(default_factory=list, init=False)
    """What stands there: each line as it was written, and its cells."""
    _drawn_at: int = field(default=0, init=False)
    """The columns that it was drawn for."""
    _is_hidden: bool = field(default=True, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _streams: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, init=False)

    def __enter__(self) -> Self:
        self._streams.enter_context(self._streams_above())
        self._is_hidden = False
        self._thread = threading.Thread(target=self._follow, name="picture", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with self._lock:
            self._erase()
            self._is_hidden = True
        self._streams.close()
        if self._thread is not None:
            self._thread.join(1.0)

    def draw(self) -> None:
        """Draw what has changed; a line that is as it was is not written again."""
        with self._lock:
            if self._is_hidden:
                return
            size = self.measure(self.stream)
            width = min(size.columns - 1, MOST_CELLS)
            after = [(painted(it, width), cells_of(it, width)) for it in self.compose(size)]
            if size.columns != self._drawn_at:
                self._erase(size.columns)
            if after != self._drawn:
                self._write(_moves(self._drawn, after))
            self._drawn, self._drawn_at = after, size.columns

    def leave(self, line: Line) -> None:
        """Write a line above the picture, where it stays."""
        with self._lock:
            self._erase()
            self._write(painted(line, UNENDING) + "\n")
            self.draw()

    def above(self, stream: TextIO, text: str) -> None:
        """Write whole lines of others above the picture."""
        with self._lock:
            self._erase()
            stream.write(text)
            stream.flush()
            self.draw()

    @contextlib.contextmanager
    def hidden(self) -> Iterator[None]:
        """Take the picture away as long as somebody is asked something."""
        with self._lock:
            self._erase()
            before, self._is_hidden = self._is_hidden, True
        try:
            yield
        finally:
            with self._lock:
                self._is_hidden = before
                self.draw()

    @property
    def is_hidden(self) -> bool:
        return self._is_hidden

    def _follow(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            self.draw()

    def _erase(self, columns: int | None = None) -> None:
        """Take away all rows that it takes by now: a narrower terminal has wrapped them."""
        if self._drawn:
            columns = columns or self.measure(self.stream).columns
            rows = rows_taken((cells for _, cells in self._drawn), columns)
            # Row by row: cleared from its first row on, tmux keeps a screen in the scroll-back.
            self._write("\r\x1b[2K" + "\x1b[A\x1b[2K" * rows)
        self._drawn = []

    def _write(self, text: str) -> None:
        text = encodable(text, self.stream)
        # A terminal that has gone away is no reason to leave work half done.
        with contextlib.suppress(OSError):
            self.stream.write(text)
            self.stream.flush()

    @contextlib.contextmanager
    def _streams_above(self) -> Iterator[None]:
        before = sys.stdout, sys.stderr
        ours = tuple(AboveStream(it, self) if it.isatty() else it for it in before)
        sys.stdout, sys.stderr = cast("tuple[TextIO, TextIO]", ours)
        try:
            yield
        finally:
            for stream in ours:
                if isinstance(stream, AboveStream):
                    stream.let_go()
            if sys.stdout is ours[0]:
                sys.stdout = before[0]
            if sys.stderr is ours[1]:
                sys.stderr = before[1]


def _moves(before: list[tuple[str, int]], after: list[tuple[str, int]]) -> str:
    """Return what makes one picture of another of the same width, row by row."""
    text = f"\r\x1b[{len(before)}A" if before else ""
    for index, line in enumerate(after):
        is_there = index < len(before) and before[index] == line
        text += "\x1b[B" if is_there else f"{line[0]}\x1b[K\n"
    too_many = len(before) - len(after)
    if too_many > 0:
        text += "\x1b[2K\x1b[B" * too_many + f"\x1b[2K\x1b[{too_many}A"
    return text


class AboveStream:
    """A stream of the terminal that a picture stands on: what is written to it goes above."""

    def __init__(self, stream: TextIO, picture: Picture) -> None:
        self.stream, self._picture = stream, picture
        self._held = ""

    def write(self, text: str) -> int:
        """Write the lines that are whole; the rest waits for its end."""
        whole, end, rest = (self._held + text).rpartition("\n")
        if self._picture.is_hidden:
            whole, end, rest = self._held + text, "", ""
        self._held = rest
        if whole or end:
            self._picture.above(self.stream, whole + end)
        return len(text)

    def let_go(self) -> None:
        """Write what has no end of line yet: nothing stands below it any more."""
        held, self._held = self._held, ""
        if held:
            self.stream.write(held)
            self.stream.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


def terminal_beneath(stream: TextIO) -> TextIO:
    """Return the terminal itself, for cursor movements."""
    return beneath(stream.stream if isinstance(stream, AboveStream) else stream)
