"""What is no file where a file should be: named at once, and never waited for."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.checkpoint.contents import read_config
from sparkdeploy.checkpoint.fp8_shard import Fp8Shard
from sparkdeploy.checkpoint.manifest import MANIFEST_FILE
from sparkdeploy.checkpoint.ranges import FolderRanges, read_remote_header
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.verify import verify_headers
from sparkdeploy.errors import CheckpointError
from tests.fakes.checkpoints import standalone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(20)

NAMES = (
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    MANIFEST_FILE,
)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    # A socket's own name may have 108 bytes.
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _observe(folder: Path) -> None:
    # A plan takes this as its fact; a standalone build and an overlay begin with it.
    open_folder(folder)


@pytest.mark.parametrize("made", [_pipe, _socket, _device])
def test_each_reader_refuses_it_alone(folder: Path, made: Callable[[Path], None]) -> None:
    for name in ("config.json", NAMES[0]):
        (folder / name).unlink()
        made(folder / name)
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_config(folder)
    with pytest.raises(CheckpointError, match="is no regular file"):
        read_remote_header(FolderRanges(folder), NAMES[0])


def test_a_name_that_is_no_utf8_is_refused(folder: Path) -> None:
    (folder / os.fsdecode(b"notes-\xff\x1b[2J.json")).write_text("{}")
    for work in (verify_headers, _observe):
        with pytest.raises(CheckpointError, match="is no UTF-8") as caught:
            work(folder)
        assert caught.value.message.isprintable()


def test_folders_without_end_are_refused(folder: Path) -> None:
    deep = folder.joinpath(*["a"] * 20)
    deep.mkdir(parents=True)
    (deep / "x").write_text("x")
    with pytest.raises(CheckpointError, match="folders deep"):
        _observe(folder)


def test_standalone_copies_no_link_to_a_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "up").symlink_to(".")
    shard = Fp8Shard(folder / "model_extra_tensors.safetensors", "lab", {})
    with pytest.raises(CheckpointError, match="up leads to a folder"):
        standalone(open_folder(folder), shard, tmp_path / "out")
    assert not (tmp_path / "out").exists()
