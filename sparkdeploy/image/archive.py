"""Image archives: a tar that carries images to a machine without a network, and its own proof."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import tarfile
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from sparkdeploy import labels
from sparkdeploy.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_DIGEST = re.compile(r"([0-9a-f]{64})(?:\.json)?$")


@dataclass(frozen=True, slots=True)
class ArchivedImage:
    """One image of an archive, every byte of which was held against its digest."""

    digest: str
    """sha256 of its configuration in hex, which names every layer: the image's own identity."""
    tags: tuple[str, ...]
    labels: Mapping[str, str]


def read_archive(path: Path) -> tuple[ArchivedImage, ...]:
    """Verify an archive and return its images; raise BuildError for any that is not what it says.

    An image's configuration is named by its sha256 and lists the sha256 of every layer, so a
    changed byte cannot hide; images without our label are refused.
    """
    try:
        with tarfile.open(path, mode="r:") as archive:
            with _open(archive, "manifest.json") as stream:
                entries = json.load(stream)
            return tuple(_verified(archive, entry) for entry in entries)
    except (tarfile.TarError, KeyError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BuildError(
            f"{path} is no image archive, or a part of it is missing: {error}",
            hint="make it with `sparkdeploy image export`, and compare the sizes after copying",
        ) from error
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror or error}") from error


def _verified(archive: tarfile.TarFile, entry: Mapping[str, Any]) -> ArchivedImage:
    tags = tuple(entry.get("RepoTags") or ())
    with _open(archive, entry["Config"]) as stream:
        content = stream.read()
    digest = hashlib.sha256(content).hexdigest()
    if _digest_in(entry["Config"]) != digest:
        raise _changed(tags, "its configuration")
    config = json.loads(content)
    found = config.get("config", {}).get("Labels") or {}
    if found.get(labels.KIND) != "image":
        raise BuildError(
            f"{', '.join(tags) or digest} in the archive was not made by sparkdeploy",
            hint="load it with docker, and name it: --set engine=image --set image=sha256:...",
        )
    layers, diff_ids = entry["Layers"], config["rootfs"]["diff_ids"]
    if len(layers) != len(diff_ids):
        raise _changed(tags, "its list of layers")
    for layer, diff_id in zip(layers, diff_ids, strict=True):
        with _open(archive, layer) as stream:
            read = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
        # Newer engines name layers by digest and may keep them compressed.
        named = _digest_in(layer) if "blobs/sha256/" in layer else None
        if read not in {diff_id.removeprefix("sha256:"), named}:
            raise _changed(tags, f"layer {diff_id[:19]}")
    return ArchivedImage(digest, tags, found)


def _digest_in(name: str) -> str | None:
    return found[1] if (found := _DIGEST.search(name)) else None


def _open(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    member = archive.getmember(name)
    if member.issym():  # the engine links layers that two images share
        folder = posixpath.dirname(name)
        member = archive.getmember(posixpath.normpath(f"{folder}/{member.linkname}"))
    stream = archive.extractfile(member)
    if stream is None:
        raise KeyError(name)
    return stream


def _changed(tags: Sequence[str], what: str) -> BuildError:
    name = ", ".join(tags) or "an image"
    return BuildError(
        f"{name} in the archive is damaged: {what} differs from its digest",
        hint="copy the archive again; nothing was loaded",
    )
