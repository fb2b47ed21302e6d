"""A terminal taken whole for a while: its other screen, its keys, its changes of size."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import tty
from typing import TYPE_CHECKING, Any, Self, TextIO

from sparkdeploy.paper import painted
from sparkdeploy.picture import encodable, size_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from sparkdeploy.ink import Line

TAKE = "\x1b[?1049h\x1b[?25l\x1b[2J"
"""The other screen, without a cursor, empty."""
CLEAR = "\x1b[2J"
GIVE_BACK = "\x1b[?25h\x1b[?1049l"
END_OF_INPUT = "\x04"
MOST_KEYS = 64


class FullScreen(contextlib.AbstractContextManager["FullScreen"]):
    """The whole of a terminal in a block; afterwards it is as it was, however the block ended.

    Only for the main thread: it hears signals. Ctrl-Z gives the terminal back until `fg`.
    """

    def __init__(self, output: TextIO, keys: TextIO) -> None:
        """Draw on `output`, the stream itself and no cleaning one; `keys` may be no terminal."""
        self._output = output
        self._keys = keys.fileno() if keys.isatty() else None
        self._drawn: list[str] = []
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._woken, self._waker = -1, -1
        self._is_resized = False
        self._is_to_rest = False

    @property
    def columns(self) -> int:
        return size_of(self._output).columns

    @property
    def rows(self) -> int:
        return size_of(self._output).lines

    def __enter__(self) -> Self:
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        for number, handler in (
            (signal.SIGWINCH, self._resize),
            (signal.SIGTSTP, self._ask_for_rest),
        ):
            self._handlers[number] = signal.signal(number, handler)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._waker)

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these lines from the top; rows that did not change stay, so nothing flickers."""
        if self._is_resized:
            self._is_resized = False
            self._drawn = []
            self._write(CLEAR)
        columns, rows = self.columns, self.rows
        shown = [painted(line, columns) for line in lines[:rows]]
        shown += [""] * (rows - len(shown))
        if len(self._drawn) != rows:
            self._drawn = ["\0"] * rows
        changed = [
            f"\x1b[{row};1H{text}\x1b[K"
            for row, (text, before) in enumerate(zip(shown, self._drawn, strict=True), start=1)
            if text != before
        ]
        self._drawn = shown
        if changed:
            self._write("".join(changed))

    def wait(self, duration_s: float) -> str:
        """Wait until a key was pressed, the size changed or the time is over; return the keys."""
        watched = [self._woken, *([] if self._keys is None else [self._keys])]
        ready, _, _ = select.select(watched, (), (), max(duration_s, 0.0))
        if self._woken in ready:
            os.read(self._woken, MOST_KEYS)
            self._rest_if_asked()
        if self._keys not in ready or self._keys is None:
            return ""
        # A terminal that has gone away is at its end for ever.
        return os.read(self._keys, MOST_KEYS).decode(errors="replace") or END_OF_INPUT

    def _take(self) -> None:
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._drawn = []
        self._write(TAKE)

    def _give_back(self) -> None:
        self._write(GIVE_BACK)
        if self._keys is not None and self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    # A handler may run in the middle of a write, so it writes nothing.
    def _resize(self, _number: int, _frame: FrameType | None) -> None:
        self._is_resized = True
        self._wake()

    def _ask_for_rest(self, _number: int, _frame: FrameType | None) -> None:
        self._is_to_rest = True
        self._wake()

    def _rest_if_asked(self) -> None:
        if self._is_to_rest:
            self._is_to_rest = False
            self._give_back()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._take()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"\0")

    def _write(self, text: str) -> None:
        # A terminal that has gone away is told by its end of input.
        with contextlib.suppress(OSError):
            self._output.write(encodable(text, self._output))
            self._output.flush()
