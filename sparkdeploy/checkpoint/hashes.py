"""What files of a checkpoint are known by: names of a cache's blobs, and hashes that are kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.cache import BLOBS
from sparkdeploy.checkpoint.durable import (
    XXH3_PREFIX,
    Algorithm,
    content_hash,
    disk_errors,
    write_text,
)
from sparkdeploy.checkpoint.links import LINKS_LIMIT, real_path
from sparkdeploy.checkpoint.manifest import are_digests
from sparkdeploy.checkpoint.repo_files import printable
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node.private_folder import make_private
from sparkdeploy.stored_json import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SCHEMA = 1


def blob_hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The hashes that a hub's cache states of files, where they are links into one."""
    found = ((name, _blob_name(folder / name)) for name in names)
    return {name: blob for name, blob in found if blob is not None}


def _blob_name(path: Path) -> str | None:
    """What the first link into a repository's blobs is called: sha256, or git's hash if small.

    A blob may be a link again, into the store that repositories share, where files are called by
    another hash.
    """
    for _ in range(LINKS_LIMIT):
        if not path.is_symlink():
            return None
        target = path.parent / path.readlink()
        path = real_path(target.parent) / target.name
        if path.parent.name == BLOBS and _BLOB.fullmatch(path.name):
            return path.name
    return None


def hash_like(path: Path, stated: str) -> str:
    """A file's hash of the kind that `stated` is; CheckpointError when it cannot be read."""
    algorithm: Algorithm = "sha256"
    if stated.startswith(XXH3_PREFIX):
        algorithm = "xxh3"
    elif len(stated) == 40:
        algorithm = "git"
    try:
        return content_hash(path, algorithm)
    except OSError as error:
        raise CheckpointError(
            f"{printable(str(path))} cannot be read: {error.strerror or error}"
        ) from error


@dataclass(frozen=True, slots=True)
class HashRecord:
    """The hashes that `verify --hash` keeps of a folder; never in the folder itself.

    A folder is known by where it is: one that was moved has no record.
    """

    state_dir: Path
    folder: Path

    @property
    def path(self) -> Path:
        digest = hashlib.sha256(os.fsencode(real_path(self.folder))).hexdigest()
        return self.state_dir / "hashes" / f"{digest[:24]}.json"

    def read(self) -> dict[str, str]:
        """By file; empty without a record. Raises CheckpointError for one that is not whole."""
        try:
            content = read_json(self.path)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._unusable(getattr(error, "strerror", None) or str(error)) from error
        hashes = content.get("hashes") if isinstance(content, dict) else None
        if hashes is None or content.get("schema") != _SCHEMA or not are_digests(hashes):
            raise self._unusable("it is not what this release writes")
        known: dict[str, str] = hashes
        return known

    def write(self, hashes: Mapping[str, str]) -> None:
        make_private(self.state_dir)
        content = {"schema": _SCHEMA, "folder": str(self.folder), "hashes": dict(hashes)}
        with disk_errors(str(self.path)):
            self.path.parent.mkdir(exist_ok=True)
            write_text(self.path, json.dumps(content, indent=1, sort_keys=True) + "\n")

    def _unusable(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} cannot be used: {printable(reason)}",
            hint="remove it; `sparkdeploy checkpoint verify --hash` writes it anew",
        )
