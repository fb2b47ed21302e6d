"""A terminal taken whole for a while: its other screen, and its keys."""

import contextlib
import os
import select
import signal
import termios
import time
import tty
from collections.abc import Sequence
from typing import Any, Self, TextIO

from sparkdeploy.terminal.style import Line, painted, size_of

TAKE = "\x1b[?1049h\x1b[?25l"
"""The other screen, without a cursor."""
GIVE_BACK = "\x1b[?25h\x1b[?1049l"
END_OF_INPUT = "\x04"
MAX_KEYS = 64


class FullScreen(contextlib.AbstractContextManager["FullScreen"]):
    """The whole of a terminal in a block; afterwards it is as it was, however the block ended."""

    # Ctrl-Z does nothing meanwhile: a shell would come up on the other screen.

    def __init__(self, output: TextIO, keys: TextIO) -> None:
        """Draw on `output`, the stream itself and no cleaning one; `keys` may be no terminal."""
        self._output = output
        self._keys = keys.fileno() if keys.isatty() else None
        self._before: list[Any] | None = None
        self._suspend: Any = None

    @property
    def columns(self) -> int:
        return size_of(self._output).columns

    @property
    def rows(self) -> int:
        return size_of(self._output).lines

    def __enter__(self) -> Self:
        self._suspend = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        if self._keys is not None:
            self._before = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        self._write(TAKE)
        return self

    def __exit__(self, *_: object) -> None:
        self._write(GIVE_BACK)
        if self._keys is not None and self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)
        signal.signal(signal.SIGTSTP, self._suspend)

    def show(self, lines: Sequence[Line]) -> None:
        """Draw these lines from the top, and clear what was behind and below them."""
        columns = self.columns
        rows = (f"{painted(line, columns)}\x1b[K" for line in lines[: self.rows])
        self._write("\x1b[H" + "\n".join(rows) + "\x1b[J")

    def wait(self, duration_s: float) -> str:
        if self._keys is None:
            time.sleep(max(duration_s, 0.0))
            return ""
        if not select.select([self._keys], (), (), max(duration_s, 0.0))[0]:
            return ""
        # A terminal that has gone away is at its end for ever.
        return os.read(self._keys, MAX_KEYS).decode(errors="replace") or END_OF_INPUT

    def _write(self, text: str) -> None:
        encoding = self._output.encoding or "utf-8"
        # A terminal that has gone away is noticed by its end of input.
        with contextlib.suppress(OSError):
            self._output.write(text.encode(encoding, "replace").decode(encoding))
            self._output.flush()
