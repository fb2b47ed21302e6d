"""Every name that `checkpoint ls` shows is one that `verify` and `inspect` know."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.fp8_shard import Order, fetch_shard, shard_folder, shard_store
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.checkpoint.ranges import FolderRanges
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.settings import load_settings
from tests.unit.checkpoint.conftest import COMMIT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.program import Run


@pytest.fixture
def stored(hub_cache: Path, small_twin: Path, fp8_twin: Path) -> None:
    """A download, one without the branch main, a prepared checkpoint, and fetched FP8 tensors."""
    settings = load_settings()
    shutil.copytree(hub_cache, settings.hub_cache, symlinks=True)
    root = settings.hub_cache / "models--lab--twin"
    shutil.copytree(root, settings.hub_cache / "models--lab--only", symlinks=True)
    (settings.hub_cache / "models--lab--only" / "refs" / "main").unlink()
    source = open_folder(root / "snapshots" / COMMIT)
    build_overlay(source, Conversion(lm_head="int8"), settings.data_dir / "m" / "ck" / "twin-1")
    order = Order(model_sizes(read_config(small_twin)), "lab", model=small_twin)
    fetch_shard(
        FolderRanges(fp8_twin),
        order,
        shard_folder(shard_store(settings), order),
        lambda _done, _total: None,
    )


def test_every_name_that_is_listed_is_known(run: Run, stored: None) -> None:
    names = {item["name"]: item["kind"] for item in run.answer("checkpoint", "ls", "--json")}
    assert sorted(names.values()) == ["download", "download", "fp8", "prepared"]
    for name, kind in names.items():
        found = run.answer("checkpoint", "verify", name, "--json")
        assert found["fp8_weights"] == (12 if kind == "fp8" else 0)
        deep = run.answer("checkpoint", "verify", "--deep", name, "--json")
        assert (deep["unhashed"], deep["hashed_files"] > 0) == ([], True)


def test_a_changed_fp8_tensor_is_named(run: Run, stored: None) -> None:
    (shard,) = shard_store(load_settings()).glob("*/*.safetensors")
    with shard.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    done = run("checkpoint", "verify", "--deep", shard.parent.name)
    assert done.returncode == 6
    assert "fp8_" in done.stderr
    assert "has changed" in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "nonsense",
        "x" * 300,
        "a/b/c",
        "lab/none",
        "\x1b[2J/x",
        "/",
        ".",
        "lab/x@y@z",
        "",
    ],
)
def test_nonsense_gets_one_clear_sentence(run: Run, stored: None, name: str) -> None:
    done = run("checkpoint", "verify", name)
    assert done.returncode == 6
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert said.endswith("is no checkpoint on this machine.")
    assert said.isprintable()


def test_a_path_that_nobody_has_is_a_mistake_in_usage(run: Run, stored: None) -> None:
    done = run("checkpoint", "verify", "~nobody/x")
    assert done.returncode == 2
    assert done.stderr == "error: there is no folder '~nobody/x'\n"
