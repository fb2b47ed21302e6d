"""A terminal to look at: tmux runs a program in it, and tells what stands on its screen."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engine.conftest import DEADLINE_S, until

SIZES = ((80, 24), (120, 40), (200, 50))
EACH_SIZE = [SIZES[0], *(pytest.param(size, marks=pytest.mark.slow) for size in SIZES[1:])]
PROMPT = "the-next-prompt$"
DRAWN = re.compile(r"▸|·|to come|so far|░")
"""What only a picture has: none of it may be left when the program has ended."""
PLAIN_LINES = ("CI", "NO_COLOR", "COLUMNS", "LINES", "TMUX", "TMUX_PANE")
"""What would make a program draw nothing, or for another size."""


@dataclass(frozen=True)
class Screen:
    """One tmux server with one window, in which a program runs."""

    socket: Path
    exit_file: Path

    def shows(self) -> str:
        """Return what stands on the screen, without the blanks at the ends of rows."""
        return self._tmux("capture-pane", "-p").rstrip("\n")

    def whole(self) -> str:
        """Return what was scrolled off, and the screen; wrapped rows are one line again."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-").rstrip()

    def resize(self, columns: int, rows: int) -> None:
        """Make the window another size, as somebody who pulls at its corner does."""
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def press(self, *keys: str) -> None:
        """Press keys: `C-c`, `Enter`; other words letter by letter."""
        self._tmux("send-keys", *keys)

    def until(self, condition: Callable[[str], bool]) -> str:
        """Return the first screen of which it is true; fail with the last one."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition(shown := self.shows()):
            assert time.monotonic() < deadline_s, f"never seen; the screen:\n{shown}"
            time.sleep(0.05)
        return shown

    def until_shown(self, words: str, timeout_s: float = DEADLINE_S) -> str:
        """Wait until the screen has these words; return all of it."""
        seen = []

        def is_shown() -> bool:
            seen.append(self.shows())
            assert words in seen[-1] or not self.exit_file.exists(), self.whole()
            return words in seen[-1]

        until(is_shown, timeout_s=timeout_s)
        return seen[-1]

    def wait(self) -> int:
        """Wait for the program's end and the prompt after it; return the exit code."""
        until(lambda: PROMPT in self.shows())
        return self.exit_code()

    def exit_code(self) -> int:
        """Return the exit code of a program that has ended."""
        return int(self.exit_file.read_text())

    def frames_to_the_end(self, timeout_s: float = DEADLINE_S) -> list[str]:
        """Look again and again until the program has ended; return all that was seen."""
        frames = [self.shows()]

        def has_ended() -> bool:
            frames.append(self.shows())
            return PROMPT in frames[-1]

        until(has_ended, timeout_s=timeout_s)
        return frames

    def pause(self, duration_s: float) -> None:
        """Let the program draw for a while: no event shows that it has."""
        time.sleep(duration_s)

    def cursor_is_visible(self) -> bool:
        """Say whether the terminal shows its cursor."""
        return self._tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"

    def _tmux(self, *words: str) -> str:
        argv = ["tmux", "-S", str(self.socket), *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def screen(
    argv: Sequence[str], env: Mapping[str, str], folder: Path, size: tuple[int, int]
) -> Iterator[Screen]:
    """Run a program on a screen of so many columns and rows; a prompt comes after it."""
    folder.mkdir()
    made = Screen(folder / "tmux", folder / "exit")
    ending = f"printf %s $? > {shlex.quote(str(made.exit_file))}; printf '{PROMPT}'; exec sleep 600"
    environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **env}
    for name in PLAIN_LINES:
        environment.pop(name, None)
    columns, rows = map(str, size)
    start = ["tmux", "-S", str(made.socket), "-f", os.devnull, "new-session", "-d"]
    # Ctrl-C is for the program; the shell around it goes on.
    command = f"trap : INT; {shlex.join(argv)}; {ending}"
    subprocess.run(
        [*start, "-x", columns, "-y", rows, "sh", "-c", command], check=True, env=environment
    )
    try:
        yield made
    finally:
        subprocess.run(["tmux", "-S", str(made.socket), "kill-server"], check=False)
