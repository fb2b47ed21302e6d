"""What lies on this machine: downloads and prepared checkpoints, listed, found and removed."""

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkdeploy.checkpoint.cache import SNAPSHOTS, missing_in, repo_of, snapshot_folder
from sparkdeploy.checkpoint.contents import CONFIG_FILE
from sparkdeploy.checkpoint.fp8_shard import DONE_FILE, read_shard, shard_store
from sparkdeploy.checkpoint.hub_lock import HubLock, RevisionPin
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.checkpoint.repo_files import files_here, printable, repo_and_revision, shown
from sparkdeploy.checkpoint.source import (
    fetch_command,
    find_in_hub_cache,
    readable,
    real_path,
    shared_files,
)
from sparkdeploy.errors import CheckpointError, UsageError
from sparkdeploy.settings import Settings

HINT = "`sparkdeploy checkpoint ls` shows what is"


@dataclass(frozen=True, slots=True)
class Stored:
    """One thing on disk. `size_bytes` counts each file once, also one that is shared."""

    kind: Literal["download", "prepared", "fp8"]
    name: str
    state: str
    path: Path
    size_bytes: int
    freed_bytes: int
    """What `remove` gives back: not what other repositories of the hub cache use as well."""


def stored(settings: Settings) -> Iterator[Stored]:
    pins = HubLock(settings.state_dir).pins()
    # Datasets and spaces may have links into the store too.
    shared = {root: set(shared_files(root).values()) for root in _roots(settings, "*")}
    users = Counter(path for paths in shared.values() for path in paths)
    for root in _roots(settings, "models"):
        repo = repo_of(root)
        if "--" in repo:
            # Nobody can say which repository that is; the hub has none of such a name.
            continue
        own_pins = {revision: pin for (name, revision), pin in pins.items() if name == repo}
        states = [f"{of} = {pin.commit[:12]}{_whole(root, pin)}" for of, pin in own_pins.items()]
        own = [path.stat() for path in _files_of(root)]
        linked = {path: path.stat() for path in shared[root]}
        size_bytes = sum(status.st_size for status in (*own, *linked.values()))
        alone = [*own, *(status for path, status in linked.items() if users[path] == 1)]
        # A file with a second name is another repository's too.
        freed_bytes = sum(status.st_size for status in alone if status.st_nlink == 1)
        state = "; ".join(states) or f"not pinned{_whole_unpinned(root)}"
        yield Stored("download", repo, state, root, size_bytes, freed_bytes)
    for path in sorted((settings.data_dir / "m" / "ck").glob("[!.]*")):
        manifest = read_manifest(path)
        state = "unfinished" if manifest is None else f"from {manifest.source_name}"
        yield _prepared("prepared", path, state)
    for path in sorted(shard_store(settings).glob("[!.]*")):
        shard = read_shard(path)
        state = "unfinished" if shard is None else f"from {shard.origin}"
        yield _prepared("fp8", path, state)


def _whole(root: Path, pin: RevisionPin) -> str:
    """Say whether all of a pinned commit is here: what is gone is not verified any more."""
    absent = missing_in(root / SNAPSHOTS / pin.commit, pin.files)
    if absent:
        return f", {len(pin.files) - len(absent)} of {len(pin.files)} files"
    return ", verified" if pin.is_verified else ""


def _whole_unpinned(root: Path) -> str:
    """Say of snapshots that other programs made which lack files of the weights, by their names."""
    for snapshot in sorted((root / SNAPSHOTS).glob("[!.]*")):
        counted = files_here([path.name for path in snapshot.glob("*") if path.exists()])
        if counted is not None:
            return f", {counted[0]} of {counted[1]} files"
    return ""


def _roots(settings: Settings, kind: str) -> list[Path]:
    return sorted(settings.hub_cache.glob(f"{kind}--*--*"))


def _prepared(kind: Literal["prepared", "fp8"], path: Path, state: str) -> Stored:
    size_bytes = sum(file.stat().st_size for file in _files_of(path))
    return Stored(kind, path.name, state, path, size_bytes, size_bytes)


def find_stored(name: str, settings: Settings) -> Stored:
    for item in stored(settings):
        if item.name == name:
            return item
    raise CheckpointError(f"{name} is not on this machine.", hint=HINT)


@readable()
def find_folder(name: str, settings: Settings) -> Path:
    """Return a folder itself, or what a name of `stored` means: its pin, main, or the only one."""
    named = Path(os.path.expanduser(name))  # noqa: PTH111 - Path's own raises for ~nobody
    if _begins_like_one(named):
        return named.absolute()
    if name.startswith(("/", "./", "../", "~")) and not os.path.lexists(named):
        raise UsageError(f"there is no folder {shown(name)}")
    repo, revision = repo_and_revision(name)
    pin = HubLock(settings.state_dir).pin(repo, revision)
    snapshot = None if pin is None else snapshot_folder(settings.hub_cache, repo, pin.commit)
    if snapshot is None:
        item = next((item for item in stored(settings) if item.name in {name, repo}), None)
        if item is None:
            raise CheckpointError(
                f"{shown(name)} is no checkpoint on this machine.",
                hint=f"name a folder that holds a config.json; {HINT}",
            )
        snapshot = _snapshot_of(item, revision) if item.kind == "download" else item.path
    if snapshot is None or not snapshot.is_dir():
        raise CheckpointError(
            f"no snapshot of {printable(name)} is here.", hint=fetch_command(repo, revision)
        )
    return snapshot


def _begins_like_one(folder: Path) -> bool:
    """Whether a config.json lies in it, of whatever kind, or what comes last to an FP8 shard."""
    return any(_is_there(folder / file) for file in (CONFIG_FILE, DONE_FILE))


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False
    return True


def _snapshot_of(item: Stored, revision: str) -> Path | None:
    found = find_in_hub_cache(item.name, revision, item.path.parent)
    if found is not None:
        return found.files_dir
    snapshots = list((item.path / SNAPSHOTS).glob("[!.]*"))
    return snapshots[0] if revision == "main" and len(snapshots) == 1 else None


def remove(item: Stored, settings: Settings) -> None:
    """Delete it with everything recorded about it; CheckpointError when a file stays."""
    if item.kind == "download":
        _remove_repository(item.path)
        HubLock(settings.state_dir).forget(item.name)
        return
    try:
        shutil.rmtree(item.path)
    except OSError as error:
        raise CheckpointError(f"{item.path} cannot be removed: {error}") from error


def _remove_repository(root: Path) -> None:
    """Delete a repository's folder, and what of the shared store no other one links to."""
    from huggingface_hub import DeleteCacheStrategy  # noqa: PLC0415 - takes 0.3 s

    real, none = real_path(root), frozenset[Path]()
    DeleteCacheStrategy(
        expected_freed_size=0,
        blobs=none,
        refs=none,
        repos=frozenset({real}),
        snapshots=none,
        cache_dir=real.parent,
    ).execute()
    if real.exists():
        raise CheckpointError(
            f"{real} cannot be removed.",
            hint=f"look at whose it is: ls -ld {shlex.quote(str(real))}",
        )
    if root.is_symlink():
        root.unlink()


def _files_of(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
