"""The program as a user runs it, with folders of the test session's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.engine.forks import fork_server
from tests.engine.processor import hides_avx512
from tests.engine.shipped_stages import REHEARSAL

SHIPPED_COMMAND = (sys.executable, "-m", "sparkdeploy")
NARROW_COMMAND = (sys.executable, "-m", "tests.engine.narrow_cli")


@dataclass(frozen=True)
class Program:
    """`sparkdeploy` with its folders under one root; all else is the machine's own."""

    root: Path
    more_env: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = NARROW_COMMAND if hides_avx512() else SHIPPED_COMMAND
    longest_run_s: float = 1500

    @property
    def env(self) -> dict[str, str]:
        """The environment: the machine's, with our own folders."""
        folders = {
            f"SPARKDEPLOY_{kind.upper()}_DIR": str(self.root / kind)
            for kind in ("config", "state", "data", "cache", "lock")
        }
        own = {"HF_HUB_CACHE": str(self.root / "hub"), "SPARKDEPLOY_REHEARSAL_ENGINE": REHEARSAL}
        return {**os.environ, **folders, **own, **self.more_env}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start it and return at once."""
        return subprocess.Popen(
            [*self.command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env,
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end: in a fork of what has imported it, unless that would import more."""
        if self.command == SHIPPED_COMMAND and "PYTHONPATH" not in self.more_env:
            return fork_server().run(arguments, self.env, self.longest_run_s)
        process = self.start(*arguments)
        try:
            stdout, stderr = process.communicate(timeout=self.longest_run_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def answer(self, *arguments: str) -> Any:
        """Run it, expect success, and return its JSON answer."""
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
