"""One shard with the FP8 shared experts of a recipe, fetched by range and kept for all overlays."""

import hashlib
import json
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sparkdeploy.checkpoint import durable, fp8, pull, safetensors
from sparkdeploy.checkpoint.contents import Located, ModelSizes, model_sizes, read_config, summary
from sparkdeploy.checkpoint.durable import Progress
from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.ranges import FolderRanges, HubRanges, Meter, RangeSource, index_of
from sparkdeploy.checkpoint.repo_files import printable, repo_and_revision
from sparkdeploy.checkpoint.safetensors import Header
from sparkdeploy.checkpoint.source import CheckpointSource, open_folder, source_identity
from sparkdeploy.checkpoint.threads import work_through
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.paths import is_folder
from sparkdeploy.recipe.schema import Checkpoint
from sparkdeploy.settings import Settings
from sparkdeploy.stored_json import open_regular, read_json
from sparkdeploy.terminal.console import console

SHARD_FILE = "sparkdeploy-fp8.safetensors"
DONE_FILE = "sparkdeploy-fp8.json"
PARTS_FOLDER = "parts"
"""Has each tensor as a file until all are there."""
CONNECTIONS = 8
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
    model: Path | None = None
    """The folder of the same weights at 16 bits; without one nothing is compared."""


def fp8_origin(checkpoint: Checkpoint, settings: Settings) -> str:
    """Name the recipe's FP8 tensors to the commit, or to the state of a folder; no network."""
    source = _source_of(checkpoint)
    if not source:
        return ""
    if is_folder(source):
        return f"folder {source} {source_identity(open_folder(Path(source)))}"
    repo, revision = repo_and_revision(source)
    pin = HubLock(settings.state_dir).pin(repo, revision)
    return f"{repo}@{revision if pin is None else pin.commit}"


def resolve_fp8(checkpoint: Checkpoint, settings: Settings) -> bool:
    """Pin the FP8 repository's commit if it is not pinned; say whether that changed anything."""
    source = _source_of(checkpoint)
    if not source or is_folder(source):
        return False
    repo, revision = repo_and_revision(source)
    lock = HubLock(settings.state_dir)
    if lock.pin(repo, revision) is not None:
        return False
    pull.resolve(open_hub(settings), lock, pull.WantedRepository(repo, revision), anew=False)
    return True


def fetch_fp8(
    checkpoint: Checkpoint, source: CheckpointSource, settings: Settings
) -> Fp8Shard | None:
    """Fetch the shard for a model by range, or find it; None when the recipe takes none."""
    resolve_fp8(checkpoint, settings)
    origin = fp8_origin(checkpoint, settings)
    if not origin:
        return None
    sizes = model_sizes(read_config(source.files_dir))
    order = Order(sizes, origin, source.files_dir)
    folder = shard_folder(shard_store(settings), order)
    done = read_shard(folder)
    if done is not None:
        return done
    ranges = _open_ranges(_source_of(checkpoint), settings)
    with console.step(f"FP8 tensors of {ranges.name}") as step:
        return fetch_shard(ranges, order, folder, step.progress)


def fp8_bytes(checkpoint: Checkpoint, config: Mapping[str, Any], settings: Settings) -> int:
    """Return the bytes of FP8 tensors to download for a model; 0 when they are here."""
    origin = fp8_origin(checkpoint, settings)
    if not origin:
        return 0
    sizes = model_sizes(config)
    folder = shard_folder(shard_store(settings), Order(sizes, origin))
    return fp8.expected_bytes(sizes) if read_shard(folder) is None else 0


def shard_store(settings: Settings) -> Path:
    return settings.data_dir / "m" / "fp8"


def _open_ranges(source: str, settings: Settings) -> RangeSource:
    if is_folder(source):
        return FolderRanges(open_folder(Path(source)).files_dir)
    hub, lock = open_hub(settings), HubLock(settings.state_dir)
    facts = pull.resolve(hub, lock, pull.WantedRepository(*repo_and_revision(source)), anew=False)
    return HubRanges(hub, facts, hint="use mode online, which needs no FP8 repository")


def _source_of(checkpoint: Checkpoint) -> str:
    """A folder, or ORG/NAME[@REVISION]; empty when the recipe takes no prebuilt tensors."""
    dense = checkpoint.fp8_dense
    return dense.source or "" if dense.mode == "prebuilt" else ""


def shard_folder(store: Path, order: Order) -> Path:
    inputs = [_VERSION, order.origin, list(fp8.expected_fp8(order.sizes).items())]
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

    Each tensor is synced under a name of its own, and fetched once. What is not like the model's
    weights is fetched once more, then refused.
    """
    lock = folder.with_name(f".{folder.name}.lock")
    with (
        durable.only_one(lock, f"FP8 tensors of {source.name}"),
        durable.disk_errors(str(folder)),
    ):
        shard = read_shard(folder) or _make(source, order, folder, on_progress)
        # Also what a builder has left that was killed after its last step but this one.
        shutil.rmtree(folder / PARTS_FOLDER, ignore_errors=True)
        durable.remove_leftovers(folder / SHARD_FILE)
        durable.remove_leftovers(folder / DONE_FILE)
    return shard


def _make(source: RangeSource, order: Order, folder: Path, on_progress: Progress) -> Fp8Shard:
    parts, path = folder / PARTS_FOLDER, folder / SHARD_FILE
    found = fp8.find_fp8(source, order.sizes, index_of(source))
    parts.mkdir(parents=True, exist_ok=True)
    wrong: tuple[str, ...] = ()
    for _ in range(2):
        _fetch(source, found, parts, on_progress)
        digests = _join(found, parts, path)
        wrong = () if order.model is None else fp8.unlike(path, order.model)
        if not wrong:
            content = {
                "version": _VERSION,
                "origin": order.origin,
                "size_bytes": path.stat().st_size,
                "digests": dict(sorted(digests.items())),
            }
            text = json.dumps(content, indent=1, sort_keys=True) + "\n"
            durable.write_text(folder / DONE_FILE, text)
            return Fp8Shard(path, order.origin, digests)
        for name in wrong:
            (parts / name).unlink()
            (parts / fp8.scale_of(name)).unlink()
    raise CheckpointError(
        f"{source.name}: {summary(wrong)} is not the model's own weight in FP8.",
        detail="\n".join(wrong),
        hint="use the FP8 repository of the same model, or mode online; if it is that one, the "
        "network or the disk changes bytes",
    )


def _fetch(
    source: RangeSource, found: Mapping[str, Located], parts: Path, on_progress: Progress
) -> None:
    """Fetch the tensors whose parts are not there, a request for each."""
    meter = Meter(sum(located.info.size_bytes for located in found.values()), on_progress)

    def fetch(located: Located) -> None:
        info = located.info
        part = parts / fp8.own_name(info.name)
        if not (part.is_file() and part.stat().st_size == info.size_bytes):
            content = b"".join(source.read(located.file, info.begin, info.end))
            with durable.staged_file(part) as file:
                file.write(content)
        meter.add(info.size_bytes)

    work_through(
        list(found.values()),
        fetch,
        threads=CONNECTIONS,
        stop=threading.Event(),
        watch=lambda: meter.require_progress(source.name),
    )


def _join(found: Mapping[str, Located], parts: Path, shard: Path) -> dict[str, str]:
    digests: dict[str, str] = {}

    def read(name: str) -> bytes:
        with open_regular(parts / name) as file:
            content = file.read()
        digests[name] = hashlib.sha256(content).hexdigest()
        return content

    tensors: dict[str, safetensors.TensorData] = {
        own: (located.info.dtype, located.info.shape, partial(read, own))
        for own, located in ((fp8.own_name(name), located) for name, located in found.items())
    }
    safetensors.write_file(shard, tensors)
    return digests


def check_shard(folder: Path, on_progress: Progress | None = None) -> Header:
    """Return a shard's header; CheckpointError unless whole; `on_progress` reads it all."""
    shard = read_shard(folder)
    if shard is None:
        raise _unsound(folder, "it is not finished")
    header = safetensors.read_header(shard.path)
    unlike = sorted(header.tensors.keys() ^ shard.digests.keys())
    if unlike:
        raise _unsound(folder, f"{summary(unlike)} is not what was fetched", unlike)
    if on_progress is not None:
        wrong = []
        with open_regular(shard.path) as file:
            for name, info in header.tensors.items():
                if hashlib.sha256(header.read(file, info)).hexdigest() != shard.digests[name]:
                    wrong.append(name)
                on_progress(header.data_offset + info.end, header.file_size_bytes)
        if wrong:
            raise _unsound(folder, f"the content of {summary(wrong)} has changed", wrong)
    return header


def _unsound(folder: Path, reason: str, names: Sequence[str] = ()) -> CheckpointError:
    return CheckpointError(
        f"{printable(folder)} is no sound shard of FP8 tensors: {reason}.",
        detail="\n".join(map(printable, names)) or None,
        hint="remove it by `sparkdeploy checkpoint rm`; the next `up` fetches it again",
    )
