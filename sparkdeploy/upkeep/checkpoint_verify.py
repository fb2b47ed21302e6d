"""`checkpoint verify`: a model or fetched FP8 tensors, by headers or by every byte."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.cache import SNAPSHOTS, repo_of
from sparkdeploy.checkpoint.fp8_shard import check_shard, check_shard_bytes, is_shard_folder
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.repo_files import is_commit, printable
from sparkdeploy.checkpoint.source import fetch_command
from sparkdeploy.checkpoint.verify import Verified, verify_bytes, verify_headers
from sparkdeploy.errors import SparkdeployError
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.checkpoint.safetensors import Header
    from sparkdeploy.settings import Settings


def verify_stored(folder: Path) -> Verified:
    """Look at headers alone; CheckpointError for what is not sound."""
    if is_shard_folder(folder):
        return _of_shard(check_shard(folder))
    return verify_headers(folder)


def verify_deep(folder: Path, settings: Settings) -> Verified:
    """Read every byte of files whose hash a pin, the cache or a manifest states.

    Raises CheckpointError for what is not sound, has changed or is gone.
    """
    with console.step(f"every byte of {folder}") as step:
        if not is_shard_folder(folder):
            return verify_bytes(folder, _pinned(folder, settings), step.progress)
        header = check_shard_bytes(folder, step.progress)
        return replace(_of_shard(header), hashed_files=1, hashed_bytes=header.file_size_bytes)


def _of_shard(header: Header) -> Verified:
    weights = sum(info.dtype == "F8_E4M3" for info in header.tensors.values())
    return Verified(files=1, tensors=len(header.tensors), fp8_weights=weights, mtp_tensors=0)


def unknown_hashes(name: str, folder: Path, found: Verified) -> SparkdeployError:
    """The error for files that were not compared with anything; it says how to get hashes."""
    count = len(found.unhashed)
    place = shlex.quote(str(folder))
    command = f"cd {place} && sha256sum * > ../{shlex.quote(folder.name)}.sha256"
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
