"""A run's record while it grows: kept after each suite, and never in the place of a whole one."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.bench.files import write_record
from sparkdeploy.errors import BenchError

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.bench.record import Run, SuiteResult


class RunKeeper:
    """Writes a run to `target`; where that is taken, beside it until the run is whole."""

    def __init__(self, run: Run, target: Path) -> None:
        self.run = run
        self.path = target
        """Where it is now."""
        self.lost: BenchError | None = None
        """Why the last try to write it failed."""
        self._target = target
        if target.exists():
            self.path = target.with_name(f"{target.stem}.unfinished.json")

    def add(self, suite: SuiteResult, finished_at: str) -> None:
        suites = (*self.run.suites, suite)
        self.run = replace(self.run, suites=suites, finished_at=finished_at)
        self._write()

    def finish(self, *, is_whole: bool) -> None:
        """Take the place that was asked for, unless a whole record would give way to less."""
        if self.path == self._target or not is_whole or not self._has_all():
            return
        unfinished, self.path = self.path, self._target
        self._write()
        if self.lost is None:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def _has_all(self) -> bool:
        return all(suite.is_complete for suite in self.run.suites)

    def _write(self) -> None:
        try:
            write_record(self.run, self.path)
        except BenchError as error:
            self.lost = error
        else:
            self.lost = None
