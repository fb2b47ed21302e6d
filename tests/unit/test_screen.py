"""A terminal taken whole, on a real pseudo-terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdeploy.terminal.screen import END_OF_INPUT, GIVE_BACK, TAKE, FullScreen
from sparkdeploy.terminal.style import line_of

pytestmark = pytest.mark.outside


class Glass:
    """The other end of a terminal: what was drawn on it, and who types on it."""

    def __init__(self) -> None:
        self.outer, inner = pty.openpty()
        self.drawing = Path(os.ttyname(inner)).open("w", encoding="utf-8")  # noqa: SIM115 - closed by the fixture
        self.keys = os.fdopen(inner, "r", encoding="utf-8")

    def resize(self, columns: int, rows: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.keys.fileno(), termios.TIOCSWINSZ, size)

    def drawn(self) -> str:
        """What came since the last call."""
        found = b""
        while select.select([self.outer], (), (), 0.05)[0]:
            found += os.read(self.outer, 65536)
        return found.decode()

    def opened(self) -> FullScreen:
        return FullScreen(self.drawing, self.keys)


@pytest.fixture
def glass() -> Iterator[Glass]:
    made = Glass()
    made.resize(20, 3)
    yield made
    made.drawing.close()
    made.keys.close()
    os.close(made.outer)


def test_lines_are_drawn_from_the_top_and_cut_at_the_size_of_now(glass: Glass) -> None:
    with glass.opened() as screen:
        screen.show([line_of("first"), line_of("other \x1b[2J"), line_of("3"), line_of("fourth")])
        drawn = glass.drawn()
        assert drawn == f"{TAKE}\x1b[Hfirst\x1b[K\r\nother \\x1b[2J\x1b[K\r\n3\x1b[K\x1b[J"
        glass.resize(10, 2)
        screen.show([line_of("a" * 30)])
        assert glass.drawn() == f"\x1b[H{'a' * 9}…\x1b[K\x1b[J"
    assert glass.drawn() == GIVE_BACK


def test_a_crash_gives_the_terminal_back_as_it_was(glass: Glass) -> None:
    before = termios.tcgetattr(glass.keys.fileno())
    heard = signal.getsignal(signal.SIGTSTP)
    with pytest.raises(ZeroDivisionError), glass.opened() as screen:
        screen.show([line_of(str(1 / 0))])
    assert termios.tcgetattr(glass.keys.fileno()) == before
    assert signal.getsignal(signal.SIGTSTP) == heard
    assert glass.drawn().endswith(GIVE_BACK)


def test_keys_come_without_a_line_end_and_the_end_of_input_is_one(glass: Glass) -> None:
    with glass.opened() as screen:
        os.write(glass.outer, b"q")
        assert screen.wait(10.0) == "q"
        assert screen.wait(0.01) == ""
        os.write(glass.outer, b"\x04")
        assert screen.wait(10.0) == END_OF_INPUT
