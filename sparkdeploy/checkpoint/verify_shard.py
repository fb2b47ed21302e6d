"""Is a shard of fetched FP8 tensors whole, and are its tensors those that came."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.contents import summary
from sparkdeploy.checkpoint.durable import digest_of
from sparkdeploy.checkpoint.fp8_shard import Fp8Shard, read_shard
from sparkdeploy.checkpoint.repo_files import printable
from sparkdeploy.checkpoint.safetensors import Header, read_header
from sparkdeploy.checkpoint.verify import Verified
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import open_regular

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sparkdeploy.checkpoint.durable import Progress

_HINT = "remove it by `sparkdeploy checkpoint rm`; the next `up` fetches it again"


def verify_shard(folder: Path) -> Verified:
    """Hold the header against what was fetched; CheckpointError unless it is finished and whole."""
    return _verified(_open(folder)[1])


def verify_shard_bytes(folder: Path, on_progress: Progress) -> Verified:
    """Hold every tensor against the hash it came with; CheckpointError names those that changed."""
    shard, header = _open(folder)
    wrong, size_bytes = [], header.file_size_bytes
    with open_regular(shard.path) as file:
        for name, info in header.tensors.items():
            begin, end = header.data_offset + info.begin, header.data_offset + info.end
            if digest_of(file, begin, end) != shard.digests[name]:
                wrong.append(name)
            on_progress(end, size_bytes)
    if wrong:
        raise _unsound(folder, f"the content of {summary(wrong)} has changed", wrong)
    return replace(_verified(header), hashed_files=1, hashed_bytes=size_bytes)


def _open(folder: Path) -> tuple[Fp8Shard, Header]:
    shard = read_shard(folder)
    if shard is None:
        raise _unsound(folder, "it is not finished")
    header = read_header(shard.path)
    unlike = sorted(header.tensors.keys() ^ shard.digests.keys())
    if unlike:
        raise _unsound(folder, f"{summary(unlike)} is not what was fetched", unlike)
    return shard, header


def _verified(header: Header) -> Verified:
    weights = sum(info.dtype == "F8_E4M3" for info in header.tensors.values())
    return Verified(files=1, tensors=len(header.tensors), fp8_weights=weights, mtp_tensors=0)


def _unsound(folder: Path, said: str, names: Sequence[str] = ()) -> CheckpointError:
    return CheckpointError(
        f"{printable(str(folder))} is no sound shard of FP8 tensors: {said}.",
        detail="\n".join(map(printable, names)) or None,
        hint=_HINT,
    )
