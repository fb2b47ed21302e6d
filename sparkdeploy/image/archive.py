"""Image archives: a tar that carries images to a machine without a network, and its own proof."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import posixpath
import re
import tarfile
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

from sparkdeploy import labels
from sparkdeploy.errors import BuildError
from sparkdeploy.node.container import run_configuration
from sparkdeploy.recipe.harmless import shown
from sparkdeploy.stored_json import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.node.container import ImageFact

_DIGEST = re.compile(r"([0-9a-f]{64})(?:\.json)?$")
MAX_JSON_BYTES = 8 << 20
"""Of a manifest or a configuration; those of an engine of vLLM have 20 KiB."""
MAX_READ_BYTES = 16 << 20
MAX_MEMBERS = 10_000
_NAMES = re.compile(
    r"manifest\.json|repositories|oci-layout|index\.json|blobs(/sha256(/[0-9a-f]{64})?)?"
    r"|[0-9a-f]{64}\.json|\w+(/(layer\.tar|json|VERSION))?"
)
_SHARED_LAYER = re.compile(r"\.\./\w+/layer\.tar|\.\./\.\./blobs/sha256/[0-9a-f]{64}")
"""What the engine links where two images share a layer."""
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class ArchivedImage:
    """One image of an archive."""

    digest: str
    """sha256 of its configuration in hex, which names every layer: the image's own identity."""
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    layers: tuple[str, ...] = ()
    """sha256 of each as it is unpacked."""
    configuration: str = ""
    """What it runs and how, as `run_configuration` writes it."""

    def is_loaded(self, found: ImageFact | None) -> bool:
        """Whether an engine has this very image: its labels, layers and what it runs.

        An engine's id is another thing with containerd's store, so it is not looked at.
        """
        return (
            found is not None
            and dict(found.labels) == dict(self.labels)
            and found.layers == self.layers
            and found.configuration == self.configuration
        )


_NO_ARCHIVE = (
    tarfile.TarError,
    ValueError,
    RecursionError,
    # JSON of another shape.
    LookupError,
    TypeError,
    AttributeError,
)


def read_archive(path: Path, stream: IO[bytes] | None = None) -> tuple[ArchivedImage, ...]:
    """Verify an archive and return its images; raise BuildError for any that is not what it says.

    `stream` is the archive where it is open already.

    An image's configuration is named by its sha256 and lists the sha256 of every layer, so a
    changed byte cannot hide; images without our label are refused.
    """
    return _read(path, _verified, stream)


def list_archive(path: Path, stream: IO[bytes] | None = None) -> tuple[ArchivedImage, ...]:
    """Return the images of an archive of ours without a look into their layers."""
    return _read(path, _described, stream)


def _read(
    path: Path,
    read: Callable[[tarfile.TarFile, Mapping[str, Any]], ArchivedImage],
    stream: IO[bytes] | None = None,
) -> tuple[ArchivedImage, ...]:
    try:
        with (
            contextlib.nullcontext(stream) if stream is not None else open_regular(path) as file,
            tarfile.open(fileobj=cast("IO[bytes]", _Sparing(file)), mode="r:") as archive,
        ):
            _require_plain(archive)
            entries = json.loads(_small(archive, "manifest.json"))
            found = tuple(read(archive, entry) for entry in entries)
            if not found:
                raise ValueError("it holds no image")
            return found
    except _NO_ARCHIVE as error:
        raise BuildError(
            f"{path} is no image archive, or a part of it is missing: {error}",
            hint="make it with `sparkdeploy image export`, and compare the sizes after copying",
        ) from error
    except OSError as error:
        raise BuildError(f"{path} cannot be read: {error.strerror or error}") from error


def _described(archive: tarfile.TarFile, entry: Mapping[str, Any]) -> ArchivedImage:
    tags = tuple(entry.get("RepoTags") or ())
    content = _small(archive, entry["Config"])
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
    layers = tuple(config["rootfs"]["diff_ids"])
    return ArchivedImage(digest, tags, found, layers, run_configuration(config["config"]))


def _verified(archive: tarfile.TarFile, entry: Mapping[str, Any]) -> ArchivedImage:
    image = _described(archive, entry)
    if len(entry["Layers"]) != len(image.layers):
        raise _changed(image.tags, "its list of layers")
    for name, layer in zip(entry["Layers"], image.layers, strict=True):
        with _open(archive, name) as stream:
            if not _is_layer(stream, name, layer, image.tags):
                raise _changed(image.tags, f"layer {layer[:19]}")
    return image


def _is_layer(stream: IO[bytes], name: str, layer: str, tags: Sequence[str]) -> bool:
    """Hold what stands in an archive against the layer, and against a name that is a digest."""
    named = f"sha256:{_digest_in(name)}" if "blobs/sha256/" in name else None
    if named is not None and named != layer and _digest_of(stream) != named:
        return False
    return _unpacked(stream, tags) == layer


def _unpacked(stream: IO[bytes], tags: Sequence[str]) -> str | None:
    """Return a layer's digest as configurations have it; None when it cannot be unpacked."""
    stream.seek(0)
    begin = stream.read(len(_ZSTD))
    stream.seek(0)
    if begin == _ZSTD:
        raise BuildError(
            f"{', '.join(tags)} in the archive has a layer packed with zstd, which is not verified",
            hint="export it from an engine with Docker's classic image store",
        )
    if not begin.startswith(_GZIP):
        return _digest_of(stream)
    # containerd's store keeps layers as they were pulled or made: mostly packed.
    try:
        with gzip.open(stream) as unpacked:
            return _digest_of(unpacked)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return None


def _digest_of(stream: IO[bytes] | gzip.GzipFile) -> str:
    return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"  # type: ignore[arg-type]


def _digest_in(name: str) -> str | None:
    return found[1] if (found := _DIGEST.search(name)) else None


class _Sparing:
    """A file of which no more is read at once than a header may have, whatever it says."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_READ_BYTES:
            raise ValueError("a header or a list of it is too large")
        return self._file.read(size)


def _require_plain(archive: tarfile.TarFile) -> None:
    """Raise ValueError for members that another reader may take for other ones.

    Docker cleans names and takes the last of several: `./manifest.json` would be loaded, and
    `manifest.json` verified.
    """
    names: set[str] = set()
    for member in archive:
        name = member.name
        if posixpath.normpath(name) != name or not _NAMES.fullmatch(name):
            raise ValueError(f"it holds {shown(name)}, which no image archive has")
        if name in names:
            raise ValueError(f"it holds {name} twice")
        if member.sparse is not None or not (member.isreg() or member.isdir() or member.issym()):
            raise ValueError(f"{name} in it is no regular file")
        if member.issym() and not _SHARED_LAYER.fullmatch(member.linkname):
            raise ValueError(f"{name} in it is a link that leads elsewhere")
        names.add(name)
        if len(names) > MAX_MEMBERS:
            raise ValueError(f"it holds more than {MAX_MEMBERS} files")


def _small(archive: tarfile.TarFile, name: str) -> bytes:
    with _open(archive, name) as stream:
        content = stream.read(MAX_JSON_BYTES + 1)
    if len(content) > MAX_JSON_BYTES:
        raise ValueError(f"{name} in it is larger than {MAX_JSON_BYTES >> 20} MiB")
    return content


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
