"""The folder of records: where runs are kept, found by name and listed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.bench.record import read_record
from sparkdeploy.errors import BenchError

if TYPE_CHECKING:
    from datetime import datetime

    from sparkdeploy.bench.record import Run


@dataclass(frozen=True, slots=True)
class Kept:
    """A record and its file."""

    run: Run
    path: Path


@dataclass(frozen=True, slots=True)
class Shelf:
    """Records in one folder; a person names one by id, by label (the newest wins) or by file."""

    folder: Path

    def runs(self) -> tuple[tuple[Kept, ...], tuple[str, ...]]:
        """Return every record, oldest first, and what was wrong with those that are damaged."""
        kept: list[Kept] = []
        damaged: list[str] = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                kept.append(Kept(read_record(path), path))
            except BenchError as error:
                damaged.append(error.message)
        return tuple(sorted(kept, key=lambda item: item.run.run_id)), tuple(damaged)

    def find(self, name: str) -> Kept:
        """Return the record of that id, label or file; BenchError naming those there are."""
        if name.endswith(".json") or "/" in name:
            return Kept(read_record(Path(name)), Path(name))
        kept, damaged = self.runs()
        for item in reversed(kept):
            if name in {item.run.run_id, item.run.label}:
                return item
        there = ", ".join(dict.fromkeys(item.run.label for item in kept))
        hint = f"there is: {there}" if there else "`sparkdeploy bench` makes one"
        raise BenchError(f"no run {name} in {self.folder}", hint="; ".join([hint, *damaged]))

    def path_of(self, run: Run) -> Path:
        """Return where a run is kept."""
        return self.folder / f"{run.run_id}.json"


def run_id(started: datetime, label: str, suites: str) -> str:
    """Return an id that sorts by time and says what it is."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{label}-{suites}").strip("-")
    return f"{started:%Y%m%dT%H%M%SZ}-{words}"
