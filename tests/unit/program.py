"""The program as a user runs it, in the process of the tests."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import pytest
import typer

from sparkdeploy.authoring import outlook
from sparkdeploy.cli import main as cli

_build: Callable[[Collection[str]], typer.Typer] = cli.program
# A process of its own builds the program and reads a command's signature once too.
_program = functools.cache(lambda *loaded: _build(loaded))


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


class Run:
    """Runs commands: `run("plan", "v2")`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Done:
        """Run one command to its end."""
        self._monkeypatch.setattr(sys, "argv", ["sparkdeploy", *map(str, arguments)])
        self._monkeypatch.setattr(cli, "program", lambda loaded: _program(*loaded))
        # How fast this machine copies memory is no matter here.
        self._monkeypatch.setattr(outlook, "COPIED_BYTES", 1 << 20)
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        said = self._capsys.readouterr()
        return Done(code, said.out, said.err)

    def answer(self, *arguments: str) -> Any:
        """Return the JSON a command answers; it must not fail."""
        done = self(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
