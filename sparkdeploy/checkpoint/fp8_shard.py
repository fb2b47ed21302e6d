"""One shard with the FP8 shared experts, fetched by range and kept beside the downloads."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint import durable, fp8, safetensors
from sparkdeploy.checkpoint.contents import ModelSizes, summary
from sparkdeploy.checkpoint.durable import only_one
from sparkdeploy.checkpoint.ranges import Meter, RangeSource, Span, coalesced, index_of
from sparkdeploy.checkpoint.repo_files import printable
from sparkdeploy.checkpoint.threads import work_through
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import open_regular, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.checkpoint.durable import Progress
    from sparkdeploy.checkpoint.safetensors import Header

SHARD_FILE = "sparkdeploy-fp8.safetensors"
DONE_FILE = "sparkdeploy-fp8.json"
PARTS_FOLDER = "parts"
"""Has each tensor as a file until all are there."""
CONNECTIONS = 8
REQUEST_BYTES = 4 << 20
"""What one request brings at least, where so much lies together."""
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Fp8Shard:
    """A finished shard: its file, where it came from, and the sha256 of every tensor in it."""

    path: Path
    origin: str
    digests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Order:
    sizes: ModelSizes
    origin: str
    """A repository at a commit, or a folder's state."""
    leave_unfit: bool = False
    """Whether modules whose FP8 does not fit stay at 16 bits."""
    model: Path | None = None
    """The folder of the same weights at 16 bits; without one nothing is compared."""


Matches = tuple[tuple[fp8.ExpectedTensor, fp8.FoundTensor], ...]


def shard_folder(store: Path, order: Order) -> Path:
    expected = [(item.name, item.shape) for item in fp8.expected_fp8(order.sizes)]
    inputs = [_VERSION, order.origin, expected, order.leave_unfit]
    return store / hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:24]


def read_shard(folder: Path) -> Fp8Shard | None:
    """The finished shard of a folder, or None; its content is not read again."""
    try:
        content = read_json(folder / DONE_FILE)
        wanted = (_VERSION, (folder / SHARD_FILE).stat().st_size)
        stated = (content["version"], content["size_bytes"])
        shard = Fp8Shard(folder / SHARD_FILE, content["origin"], dict(content["digests"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return shard if stated == wanted else None


def is_shard_folder(folder: Path) -> bool:
    """Whether it was begun as one of fetched FP8 tensors; a model has a config.json."""
    return (folder / DONE_FILE).is_file() and not (folder / "config.json").is_file()


def fetch_shard(source: RangeSource, order: Order, folder: Path, on_progress: Progress) -> Fp8Shard:
    """Make the shard in `folder`, or go on with one that was interrupted.

    Only headers and the tensors that are needed are read; each is synced under a name of its own,
    and what an earlier try has fetched is not fetched again. What is not like the model's weights
    is fetched once more. Raises CheckpointError when that does not help, and when the source does
    not hold exactly the expected tensors.
    """
    parts = folder / PARTS_FOLDER
    with (
        only_one(folder.with_name(f".{folder.name}.lock"), f"FP8 tensors of {source.name}"),
        durable.disk_errors(str(folder)),
    ):
        shard = read_shard(folder)
        if shard is None:
            indexed = index_of(source)
            matches = fp8.find_fp8(source, order.sizes, indexed, leave_unfit=order.leave_unfit)
            parts.mkdir(parents=True, exist_ok=True)
            _fetch(source, matches, parts, on_progress)
            digests = _join(matches, parts, folder / SHARD_FILE)
            if _remove_unlike(folder, order.model):
                _fetch(source, matches, parts, on_progress)
                digests = _join(matches, parts, folder / SHARD_FILE)
                if wrong := _remove_unlike(folder, order.model):
                    raise _unlike(source.name, wrong)
            shard = _finish(folder, order.origin, digests)
        # Also what a builder has left that was killed after its last step but this one.
        shutil.rmtree(parts, ignore_errors=True)
        durable.tidy_beside(folder / SHARD_FILE)
        durable.tidy_beside(folder / DONE_FILE)
    return shard


def _unlike(source: str, wrong: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        f"{source}: what came as {summary(wrong)} is not the model's own weight in FP8.",
        detail="\n".join(wrong),
        hint="use the FP8 repository of the same model, or mode online; if it is that one, the "
        "network or the disk changes bytes",
    )


def _fetch(source: RangeSource, matches: Matches, parts: Path, on_progress: Progress) -> None:
    meter = Meter(sum(found.info.size_bytes for _, found in matches), on_progress)
    missing = []
    for expected, found in matches:
        part = parts / expected.own_name
        if part.is_file() and part.stat().st_size == found.info.size_bytes:
            meter.add(found.info.size_bytes)
        else:
            missing.append((expected.own_name, found.span))

    def fetch(group: Sequence[tuple[str, Span]]) -> None:
        begin, end = group[0][1].begin, group[-1][1].end
        content = b"".join(source.read(group[0][1].file, begin, end))
        for name, span in group:
            with durable.staged_file(parts / name) as file:
                file.write(content[span.begin - begin : span.end - begin])
            meter.add(span.size_bytes)

    work_through(
        tuple(_groups(missing)),
        fetch,
        threads=CONNECTIONS,
        stop=threading.Event(),
        watch=lambda: meter.require_progress(source.name),
    )


def _groups(missing: Sequence[tuple[str, Span]]) -> Iterator[list[tuple[str, Span]]]:
    """What one request brings: neighbours, with the little that lies between them.

    A long row of neighbours is cut between tensors, so that several connections share it.
    """
    ordered = sorted(missing, key=lambda item: (item[1].file, item[1].begin))
    for joined in coalesced([span for _, span in ordered]):
        group: list[tuple[str, Span]] = []
        while ordered and ordered[0][1].is_within(joined):
            group.append(ordered.pop(0))
            if group[-1][1].end - group[0][1].begin >= REQUEST_BYTES:
                yield group
                group = []
        if group:
            yield group


def _join(matches: Matches, parts: Path, shard: Path) -> dict[str, str]:
    """Write the shard out of its parts, and return the hash of each."""
    digests: dict[str, str] = {}

    def read(name: str) -> bytes:
        with open_regular(parts / name) as file:
            content = file.read()
        digests[name] = hashlib.sha256(content).hexdigest()
        return content

    tensors: dict[str, safetensors.TensorData] = {
        expected.own_name: (found.info.dtype, expected.shape, partial(read, expected.own_name))
        for expected, found in matches
    }
    safetensors.write_file(shard, tensors)
    return digests


def _remove_unlike(folder: Path, model: Path | None) -> tuple[str, ...]:
    """Remove the parts that are not the model's weights, with their scales; return their names."""
    wrong = () if model is None else fp8.unlike(folder / SHARD_FILE, model)
    weight, scale = fp8.OWN_SUFFIXES[fp8.WEIGHT_SUFFIX], fp8.OWN_SUFFIXES[fp8.SCALE_SUFFIX]
    for name in wrong:
        (folder / PARTS_FOLDER / name).unlink()
        (folder / PARTS_FOLDER / (name.removesuffix(weight) + scale)).unlink()
    return wrong


def _finish(folder: Path, origin: str, digests: Mapping[str, str]) -> Fp8Shard:
    shard = folder / SHARD_FILE
    content = {
        "version": _VERSION,
        "origin": origin,
        "size_bytes": shard.stat().st_size,
        "digests": dict(sorted(digests.items())),
    }
    durable.write_text(folder / DONE_FILE, json.dumps(content, indent=1, sort_keys=True) + "\n")
    return Fp8Shard(shard, origin, digests)


def check_shard(folder: Path) -> Header:
    """Return the header of a shard; CheckpointError unless it is finished and whole."""
    shard = read_shard(folder)
    if shard is None:
        raise _unsound(folder, "it is not finished")
    header = safetensors.read_header(shard.path)
    unlike = sorted(header.tensors.keys() ^ shard.digests.keys())
    if unlike:
        raise _unsound(folder, f"{summary(unlike)} is not what was fetched", unlike)
    return header


def check_shard_bytes(folder: Path, on_progress: Progress) -> Header:
    """Compare every tensor with the hash it came with; CheckpointError names those that changed."""
    header = check_shard(folder)
    shard = read_shard(folder)
    wrong = []
    with open_regular(folder / SHARD_FILE) as file:
        for name, info in header.tensors.items():
            file.seek(header.data_offset + info.begin)
            digest = hashlib.sha256(file.read(info.size_bytes)).hexdigest()
            if shard is None or digest != shard.digests[name]:
                wrong.append(name)
            on_progress(header.data_offset + info.end, header.file_size_bytes)
    if wrong:
        raise _unsound(folder, f"the content of {summary(wrong)} has changed", wrong)
    return header


def _unsound(folder: Path, reason: str, names: Sequence[str] = ()) -> CheckpointError:
    return CheckpointError(
        f"{printable(str(folder))} is no sound shard of FP8 tensors: {reason}.",
        detail="\n".join(map(printable, names)) or None,
        hint="remove it by `sparkdeploy checkpoint rm`; the next `up` fetches it again",
    )
