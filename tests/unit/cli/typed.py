"""A real shell on a terminal of its own, and what it runs when a line is typed there."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from sparkdeploy.cli.main import COMPLETE
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path


PATIENCE_S = 60
STARTS = {"bash": ["--noprofile", "-i"], "zsh": ["-i"], "fish": ["-i"]}
PLACES = {
    "bash": "completion",
    "zsh": "completion",
    "fish": ".config/fish/completions/sparkdeploy.fish",
}
PROMPTS = {
    "bash": (".bashrc", ". ~/completion\nPS1='READY> '\n"),
    "zsh": (".zshrc", "autoload -Uz compinit && compinit -u\n. ~/completion\nPS1='READY> '\n"),
    "fish": (
        ".config/fish/config.fish",
        "function fish_prompt; echo -n 'READY> '; end\nset -g fish_greeting\n",
    ),
}
# What it is called with is kept, and completions are answered as ever.
PROGRAM = """#!{python}
import json, os, sys
if {complete!r} in os.environ:
    os.environ["PYTHONPATH"] = {repository!r}
    os.execv(sys.executable, [sys.executable, "-m", "sparkdeploy", *sys.argv[1:]])
with open({calls!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
"""


@dataclass
class Terminal:
    """An interactive shell with our completion installed, as its user would have it."""

    shell: str
    home: Path
    environment: dict[str, str] = field(default_factory=dict)
    shown: str = ""
    _process: int = 0
    _screen: int = 0

    def __enter__(self) -> Self:
        self._furnish()
        environment = {**os.environ, **self.environment, **self._own()}
        self._process, self._screen = pty.fork()
        if self._process == 0:
            program = shutil.which(self.shell) or self.shell
            os.chdir(self.home)
            os.execve(program, [self.shell, *STARTS[self.shell]], environment)
        self.until("READY> ")
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._screen)

    def run(self, keys: str) -> list[str]:
        """Type, press Enter, and return the words that the program was called with."""
        before = self._calls()
        self.type(f"{keys}\r")
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self._calls()) == len(before):
            assert time.monotonic() < deadline_s, self.shown
            self._read(0.02)
        words: list[str] = json.loads(self._calls()[-1])
        return words

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def until(self, *texts: str) -> str:
        """Return what has been shown once all of the texts were."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not all(text in self.shown for text in texts):
            assert time.monotonic() < deadline_s, self.shown
            self._read(0.1)
        return self.shown

    def _read(self, wait_s: float) -> None:
        if select.select([self._screen], [], [], wait_s)[0]:
            self.shown += os.read(self._screen, 1 << 16).decode("utf-8", "replace")

    def _furnish(self) -> None:
        file, text = PROMPTS[self.shell]
        path = self.home / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        # Or fish reads all manual pages of the machine when it is first started.
        (self.home / ".local" / "share" / "fish" / "generated_completions").mkdir(parents=True)
        program = self.home / "bin" / "sparkdeploy"
        program.parent.mkdir()
        program.write_text(
            PROGRAM.format(
                python=sys.executable,
                complete=COMPLETE,
                repository=str(REPOSITORY),
                calls=str(self.home / "calls"),
            )
        )
        program.chmod(0o755)
        self._install_completion(program)

    def _install_completion(self, program: Path) -> None:
        asked = {**os.environ, COMPLETE: f"source_{self.shell}"}
        script = subprocess.run([program], env=asked, capture_output=True, check=True).stdout
        place = self.home / PLACES[self.shell]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(script)

    def _own(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "PATH": f"{self.home}/bin:{os.environ['PATH']}",
            "TERM": "xterm",
            "ZDOTDIR": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_DATA_HOME": str(self.home / ".local" / "share"),
            "HISTFILE": "",
        }

    def _calls(self) -> list[str]:
        path = self.home / "calls"
        # A line that is being written has no end yet.
        return path.read_text().split("\n")[:-1] if path.exists() else []
