"""sparkdeploy.json: written last into a prepared checkpoint, so its presence means "done"."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sparkdeploy.checkpoint import durable
from sparkdeploy.checkpoint.conversion import DraftWeights
from sparkdeploy.checkpoint.repo_files import PART_LIMIT_BYTES
from sparkdeploy.checkpoint.source import CheckpointSource, plain_files
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import read_json

MANIFEST_FILE = "sparkdeploy.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    fingerprint: str
    source_name: str
    source_revision: str | None
    conversion: dict[str, Any]
    fp8_layer_count: int
    """Gate, up and down count each: three for a layer."""
    mtp_tensor_count: int
    digests: dict[str, str]
    shared_int4_count: int = 0
    draft_layer: DraftWeights | None = None
    """What of the draft layer becomes INT4 and FP8 then; None where it stays as it is."""


@cache
def _reader() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)


def read_manifest(path: Path) -> Manifest | None:
    try:
        manifest = _reader().validate_python(read_json(path / MANIFEST_FILE))
    except (OSError, ValueError):
        return None
    return manifest if all(map(_is_below, manifest.digests)) else None


def prepare(target: Path, fingerprint: str, make: Callable[[Path], Manifest]) -> Manifest:
    """Let `make` fill a folder beside `target`, which then takes its name all at once.

    Nothing is done where `target` has that fingerprint already; an interrupted build leaves a
    hidden folder that the next one removes. Raises CheckpointError where anything but a checkpoint
    of ours is, and when something cannot be written.
    """
    lock = target.with_name(f".{target.name}.lock")
    with durable.disk_errors(str(target)), durable.only_one(lock, str(target)):
        durable.remove_leftovers(target)
        known = read_manifest(target)
        if known is not None and known.fingerprint == fingerprint:
            return known
        if not durable.is_replaceable(target, MANIFEST_FILE):
            raise CheckpointError(
                f"{target} is no checkpoint of ours, and is left alone.",
                hint="move that folder away, or name another one",
            )
        with durable.staged_folder(target) as staging:
            return make(staging)


def write_manifest(
    folder: Path, source: CheckpointSource, hashed: Mapping[str, str], stated: Mapping[str, Any]
) -> Manifest:
    """Hash the files of a checkpoint, but for those in `hashed`, and write its manifest."""
    # A build that was killed right before the end has left its manifest, which is made anew.
    known = {*hashed, MANIFEST_FILE}
    small = {
        name: durable.content_hash(folder / name)
        for name in plain_files(folder)
        if name.rpartition("/")[2] not in known and not (folder / name).is_symlink()
    }
    manifest = Manifest(
        source_name=source.name,
        source_revision=source.revision,
        digests={**hashed, **small},
        **stated,
    )
    durable.write_text(
        folder / MANIFEST_FILE, json.dumps(asdict(manifest), indent=2, sort_keys=True) + "\n"
    )
    return manifest


def _is_below(name: str) -> bool:
    """Whether a name lies in the checkpoint; a download may bring a manifest."""
    # A folder of the user's own may have names that no hub may list, such as with a backslash.
    parts = name.split("/")
    longest = max(len(part.encode("utf-8", "surrogatepass")) for part in parts)
    return not name.startswith("/") and ".." not in parts and longest <= PART_LIMIT_BYTES
