"""What killed processes leave beside a target goes with the next one that makes it."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.checkpoint import durable
from sparkdeploy.checkpoint.durable import FOREIGN_AGE_S, _machine, copy_range, staging_path
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.outside


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_files_folders_and_links_of_dead_processes_are_removed(tmp_path: Path, dead: int) -> None:
    left = tmp_path / f".m.staging-0a-{_machine()}-{dead}"
    for leave in (
        lambda: left.write_text("half"),
        lambda: (left / "in" / "it").mkdir(parents=True),
        lambda: left.symlink_to(tmp_path),
    ):
        leave()
        staging_path(tmp_path / "m")
        assert names(tmp_path) == set()


def test_those_of_the_living_and_of_other_targets_stay(tmp_path: Path, dead: int) -> None:
    others = {
        f".m.staging-0a-{_machine()}-{os.getppid()}",
        f".m.staging-0a-{_machine()}-{1 << 70}",
        f".other.staging-0a-{_machine()}-{dead}",
        f".m.staging-0a-{_machine()}-{dead}.txt",
        ".m.staging-mine",
        f"m.staging-0a-{_machine()}-{dead}",
    }
    for name in others:
        (tmp_path / name).write_text("")
    made = staging_path(tmp_path / "m")
    assert made != staging_path(tmp_path / "m")
    assert re.fullmatch(rf"\.m\.staging-[0-9a-f]{{16}}-{_machine()}-{os.getpid()}", made.name)
    assert names(tmp_path) == others


def test_another_machines_staging_in_a_shared_folder_is_spared_for_a_week(
    tmp_path: Path, dead: int
) -> None:
    left = tmp_path / f".m.staging-0a-00000000-{dead}"
    left.write_text("half")
    staging_path(tmp_path / "m")
    assert names(tmp_path) == {left.name}
    old_s = left.stat().st_mtime - FOREIGN_AGE_S - 10
    os.utime(left, (old_s, old_s))
    staging_path(tmp_path / "m")
    assert names(tmp_path) == set()


@pytest.mark.parametrize("is_by_kernel", [True, False])
def test_a_part_of_a_file_is_copied_also_where_the_kernel_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_by_kernel: bool
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EXDEV, "across file systems")

    if not is_by_kernel:
        monkeypatch.setattr(os, "copy_file_range", refuse)
    monkeypatch.setattr(durable, "COPY_BYTES", 7)
    content = bytes(range(100))
    (tmp_path / "old").write_bytes(content)
    with (tmp_path / "old").open("rb") as old, (tmp_path / "new").open("wb") as new:
        copy_range(old.fileno(), new.fileno(), 3, 50)
        copy_range(old.fileno(), new.fileno(), 90, 10)
        with pytest.raises(CheckpointError, match="became shorter while it was copied, at 100"):
            copy_range(old.fileno(), new.fileno(), 99, 2)
    assert (tmp_path / "new").read_bytes() == content[3:53] + content[90:] + content[99:]
