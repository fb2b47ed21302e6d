"""One builder at a time."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.checkpoint.durable import only_one
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_second_builder_is_told_and_gives_up_when_its_patience_ends(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        only_one(tmp_path / "lock", "a shard"),
        pytest.raises(CheckpointError, match="a shard"),
        only_one(tmp_path / "lock", "a shard", patience_s=0.0, on_wait=said.append),
    ):
        raise AssertionError("two builders at once")
    assert said == ["waiting for another process that does the same: a shard"]


def test_a_lock_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "it's a folder" / ("x" * 300)
    with (
        pytest.raises(CheckpointError, match="cannot be opened") as caught,
        only_one(path, "a shard"),
    ):
        raise AssertionError("a lock without a file")
    assert shlex.split(str(caught.value.hint).partition(": ")[2]) == ["ls", "-l", str(path)]
