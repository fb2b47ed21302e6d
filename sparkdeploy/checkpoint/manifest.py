"""sparkdeploy.json: written last into a prepared checkpoint, so its presence means "done"."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sparkdeploy.checkpoint.conversion import DraftWeights
from sparkdeploy.checkpoint.durable import content_hash, write_text
from sparkdeploy.checkpoint.model_files import plain_files
from sparkdeploy.checkpoint.repo_files import PART_LIMIT_BYTES
from sparkdeploy.checkpoint.source import CheckpointSource
from sparkdeploy.stored_json import read_json

MANIFEST_FILE = "sparkdeploy.json"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a checkpoint was made from and what it holds; enough to make it again elsewhere."""

    version: int
    fingerprint: str
    source_kind: str
    source_name: str
    source_root: str
    source_files: str
    source_revision: str | None
    mount_name: str
    conversion: dict[str, Any]
    fp8_layer_count: int
    """Gate, up and down count each: three for a layer."""
    mtp_tensor_count: int
    digests: dict[str, str]
    """The hash of every file that is no link, but for the manifest: sha256, or `xxh3:` for large
    files that were written here."""
    shared_int4_count: int = 0
    """Modules of shared experts that become INT4 while the checkpoint is loaded."""
    draft_layer: DraftWeights | None = None
    """What of the draft layer becomes INT4 and FP8 then; None where it stays as it is."""


@cache
def _reader() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)


def read_manifest(path: Path) -> Manifest | None:
    """The manifest of the prepared checkpoint at `path`, or None when there is no whole one."""
    try:
        manifest = _reader().validate_python(read_json(path / MANIFEST_FILE))
    except (OSError, ValueError):
        return None
    return manifest if are_digests(manifest.digests) else None


def write_manifest(
    folder: Path, source: CheckpointSource, hashed: Mapping[str, str], stated: Mapping[str, Any]
) -> Manifest:
    """Hash the files of a checkpoint, but for those in `hashed`, and write its manifest.

    `stated` are the fields that neither the source nor the files give.
    """
    # A build that was killed right before the end has left its manifest, which is made anew.
    known = {*hashed, MANIFEST_FILE}
    small = {
        name: content_hash(folder / name, "sha256")
        for name in plain_files(folder)
        if name.rpartition("/")[2] not in known and not (folder / name).is_symlink()
    }
    manifest = Manifest(
        source_kind=source.kind,
        source_name=source.name,
        source_root=str(source.root),
        source_revision=source.revision,
        mount_name=source.mount_name,
        digests={**hashed, **small},
        **stated,
    )
    write_text(
        folder / MANIFEST_FILE, json.dumps(asdict(manifest), indent=2, sort_keys=True) + "\n"
    )
    return manifest


def are_digests(digests: object) -> bool:
    """Whether it is hashes of files that lie in the checkpoint; a download may bring a manifest."""
    return isinstance(digests, dict) and all(
        isinstance(digest, str) and _is_below(name) for name, digest in digests.items()
    )


def _is_below(name: str) -> bool:
    # A folder of the user's own may have names that no hub may list, such as with a backslash.
    parts = name.split("/")
    longest = max(len(part.encode("utf-8", "surrogatepass")) for part in parts)
    return not name.startswith("/") and ".." not in parts and longest <= PART_LIMIT_BYTES
