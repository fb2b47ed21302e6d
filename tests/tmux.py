"""A terminal that a test can look at: tmux, on a server of its own."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

DEADLINE_S = 60.0
BEFORE = "what stood here before"
LEFT = "left with"


@dataclass(frozen=True)
class Terminal:
    """One window; all that runs in it ends with the block that opened it."""

    server: str

    def screen(self) -> str:
        """What is on the screen now, without colours."""
        return self._tmux("capture-pane", "-p")

    def lines(self) -> list[str]:
        return self.screen().split("\n")

    def type(self, *keys: str) -> None:
        """Press keys as tmux calls them: `C-c`, `Enter`; other words letter by letter."""
        self._tmux("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def until(self, condition: Callable[[str], bool]) -> str:
        """Return the first screen of which it is true; fail with the last one."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition(screen := self.screen()):
            assert time.monotonic() < deadline_s, f"never seen; the screen:\n{screen}"
            time.sleep(0.05)
        return screen

    def _tmux(self, *words: str) -> str:
        command = ["tmux", "-L", self.server, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def terminal(
    *arguments: str, env: Mapping[str, str], columns: int = 80, rows: int = 24
) -> Iterator[Terminal]:
    """Run `sparkdeploy` with these arguments in a window of that size.

    Before it stands the line BEFORE, behind it LEFT and its exit code.
    """
    opened = Terminal(f"test-{uuid.uuid4().hex[:12]}")
    command = shlex.join([sys.executable, "-m", "sparkdeploy", *arguments])
    # The shell hears Ctrl-C as well, and goes on.
    script = f"trap : INT; echo {shlex.quote(BEFORE)}; {command}; echo {LEFT} $?; exec cat"
    # What would make it write plain lines.
    hidden = {"CI", "COLUMNS", "LINES", "NO_COLOR", "TMUX"}
    inherited = {name: it for name, it in {**os.environ, **env}.items() if name not in hidden}
    environment = {
        **inherited,
        "LC_ALL": "C.UTF-8",
        "TERM": "screen-256color",
    }
    window = ("new-session", "-d", "-x", str(columns), "-y", str(rows), "sh", "-c", script)
    # A user's own configuration of tmux may show a line of status.
    begin = ["tmux", "-f", "/dev/null", "-L", opened.server, *window]
    subprocess.run(begin, env=environment, check=True)
    try:
        yield opened
    finally:
        subprocess.run(["tmux", "-L", opened.server, "kill-server"], check=False)
