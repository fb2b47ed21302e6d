"""What lies on this machine: downloads and prepared checkpoints, listed and removed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparkdeploy.checkpoint.fp8_shard import read_shard
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.checkpoint.prebuilt import shard_store
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Stored:
    """One thing on disk. `size_bytes` counts real files only, so links cost nothing."""

    kind: Literal["download", "prepared", "fp8"]
    name: str
    state: str
    path: Path
    size_bytes: int


def stored(settings: Settings) -> tuple[Stored, ...]:
    """Everything in the hub's cache, our own checkpoints, and the FP8 tensors kept for them."""
    return (*_downloads(settings), *_prepared(settings), *_shards(settings))


def find_stored(name: str, settings: Settings) -> Stored:
    """The thing of this name; CheckpointError when there is none."""
    for item in stored(settings):
        if item.name == name:
            return item
    raise CheckpointError(
        f"{name} is not on this machine.", hint="`sparkdeploy checkpoint ls` shows what is"
    )


def remove(item: Stored, settings: Settings) -> None:
    """Delete it with everything recorded about it; CheckpointError when a file stays."""
    try:
        shutil.rmtree(item.path)
    except OSError as error:
        raise CheckpointError(f"{item.path} cannot be removed: {error}") from error
    if item.kind == "download":
        HubLock(settings.state_dir).forget(item.name)


def size_of(folder: Path) -> int:
    """Bytes of the real files below a folder."""
    return sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    )


def _downloads(settings: Settings) -> Iterator[Stored]:
    pins = HubLock(settings.state_dir).pins()
    for root in sorted(settings.hub_cache.glob("models--*--*")):
        repo = root.name.removeprefix("models--").replace("--", "/", 1)
        if "--" in repo:
            # Nobody can say which repository that is; the hub has none of such a name.
            continue
        states = [
            f"{revision} = {pin.commit[:12]}{', verified' if pin.is_verified else ''}"
            for (name, revision), pin in pins.items()
            if name == repo
        ]
        yield Stored("download", repo, "; ".join(states) or "not pinned", root, size_of(root))


def _prepared(settings: Settings) -> Iterator[Stored]:
    for path in sorted((settings.data_dir / "m" / "ck").glob("[!.]*")):
        manifest = read_manifest(path)
        state = "unfinished" if manifest is None else f"from {manifest.source_name}"
        yield Stored("prepared", path.name, state, path, size_of(path))


def _shards(settings: Settings) -> Iterator[Stored]:
    for path in sorted(shard_store(settings).glob("[!.]*")):
        shard = read_shard(path)
        state = "unfinished" if shard is None else f"from {shard.origin}"
        yield Stored("fp8", path.name, state, path, size_of(path))
