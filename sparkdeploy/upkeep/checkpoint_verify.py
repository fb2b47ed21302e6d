"""`checkpoint verify`: a model or fetched FP8 tensors, by headers or by every byte."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.cache import SNAPSHOTS, repo_of
from sparkdeploy.checkpoint.fp8_shard import is_shard_folder
from sparkdeploy.checkpoint.hashes import HashRecord, hash_like
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.repo_files import is_commit, printable
from sparkdeploy.checkpoint.source import fetch_command
from sparkdeploy.checkpoint.verify import CHANGED_HINT, Verified, verify_bytes, verify_headers
from sparkdeploy.checkpoint.verify_shard import verify_shard, verify_shard_bytes
from sparkdeploy.console import console
from sparkdeploy.errors import SparkdeployError

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.settings import Settings


def verify_stored(folder: Path) -> Verified:
    """Look at headers alone; CheckpointError for what is not sound."""
    return verify_shard(folder) if is_shard_folder(folder) else verify_headers(folder)


def verify_deep(folder: Path, settings: Settings) -> Verified:
    """Read every byte of files whose hash a pin, a record, the cache or a manifest states.

    Raises CheckpointError for what is not sound, has changed or is gone.
    """
    with console.step(f"every byte of {folder}") as step:
        if is_shard_folder(folder):
            return verify_shard_bytes(folder, step.progress)
        record = HashRecord(settings.state_dir, folder)
        kept, hint = record.read(), CHANGED_HINT
        if kept:
            hint += f"; what you changed yourself: rm {shlex.quote(str(record.path))}, then --hash"
        return verify_bytes(folder, {**kept, **_pinned(folder, settings)}, step.progress, hint)


def verify_and_keep_hashes(folder: Path, settings: Settings) -> Verified:
    """`verify_deep`, and then keep a hash of every file that has none; what was kept stays."""
    found = verify_deep(folder, settings)
    if not found.unhashed:
        return found
    record = HashRecord(settings.state_dir, folder)
    with console.step(f"hashes of {len(found.unhashed)} files") as step:
        done_bytes, hashes = 0, record.read()
        sizes = {name: (folder / name).stat().st_size for name in found.unhashed}
        for name, size_bytes in sizes.items():
            hashes[name] = hash_like(folder / name, "")
            done_bytes += size_bytes
            step.progress(done_bytes, sum(sizes.values()))
        record.write(hashes)
    console.info(f"kept hashes of {len(sizes)} files in {record.path}")
    hashed_files = found.hashed_files + len(sizes)
    hashed_bytes = found.hashed_bytes + done_bytes
    return replace(found, unhashed=(), hashed_files=hashed_files, hashed_bytes=hashed_bytes)


def unknown_hashes(name: str, folder: Path, found: Verified) -> SparkdeployError:
    """The error for files that were not compared with anything; it says how to get hashes."""
    count = len(found.unhashed)
    command = shlex.join(["sparkdeploy", "checkpoint", "verify", "--hash", name])
    root = folder.parent.parent
    if folder.parent.name == SNAPSHOTS and root.name.startswith("models--"):
        commit = folder.name if is_commit(folder.name) else None
        command = fetch_command(repo_of(root), commit)
    return SparkdeployError(
        f"{printable(name)}: no hash is known of {count} of {count + found.hashed_files} files, "
        f"get them: {command}"
    )


def _pinned(folder: Path, settings: Settings) -> dict[str, str]:
    pins = HubLock(settings.state_dir).pins().values()
    files = next((pin.files for pin in pins if pin.files and pin.commit == folder.name), ())
    return {file.name: file.blob_name for file in files}
