"""Image archives that are whole, damaged or somebody else's."""

import contextlib
import gzip
import hashlib
import io
import json
import tarfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import pytest

from sparkdeploy import labels
from sparkdeploy.commands import image as image_shelf
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image.archive import list_archive, read_archive
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.reports import read_image
from sparkdeploy.settings import load_settings

TAG = "sparkdeploy/plugin:0123"
LAYER = b"the bytes of a layer"
Member = tuple[tarfile.TarInfo, bytes]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def files(
    kind: str = "image", *, style: str = "legacy", stored: bytes | None = None
) -> dict[str, bytes]:
    """Return an archive's files; `stored` is the layer as it lies there, packed by default."""
    if stored is None:
        stored = gzip.compress(LAYER, mtime=0) if style == "packed" else LAYER
    config = json.dumps(
        {
            "config": {"Labels": {labels.KIND: kind}},
            "rootfs": {"diff_ids": [f"sha256:{sha256(LAYER)}"]},
        }
    ).encode()
    is_legacy = style == "legacy"
    name = f"{sha256(config)}.json" if is_legacy else f"blobs/sha256/{sha256(config)}"
    layer = "l1/layer.tar" if is_legacy else f"blobs/sha256/{sha256(stored)}"
    manifest = [{"Config": name, "RepoTags": [TAG], "Layers": [layer]}]
    return {"manifest.json": json.dumps(manifest).encode(), name: config, layer: stored}


def write(path: Path, content: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


@pytest.mark.parametrize("style", ["legacy", "blobs", "packed"])
def test_a_whole_archive_names_its_images(tmp_path: Path, style: str) -> None:
    content = files(style=style)
    (image,) = read_archive(write(tmp_path / "a.tar", content))
    assert image.tags == (TAG,)
    assert any(image.digest in name for name in content)


@pytest.mark.parametrize("style", ["legacy", "blobs", "packed"])
def test_one_changed_byte_anywhere_is_found(tmp_path: Path, style: str) -> None:
    for name, data in files(style=style).items():
        if name == "manifest.json":
            continue
        changed = {**files(style=style), name: bytes([data[0] ^ 1]) + data[1:]}
        with pytest.raises(BuildError, match="is damaged"):
            read_archive(write(tmp_path / "a.tar", changed))


@pytest.mark.parametrize(
    "stored",
    [gzip.compress(b"other bytes"), gzip.compress(LAYER)[:-9], b"\x1f\x8b other bytes"],
    ids=["other-bytes", "cut-off", "not-gzip"],
)
def test_a_packed_layer_counts_by_what_is_in_it(tmp_path: Path, stored: bytes) -> None:
    content = files(style="packed", stored=stored)
    with pytest.raises(BuildError, match=r"is damaged: layer sha256:\w+ differs"):
        read_archive(write(tmp_path / "a.tar", content))
    assert list_archive(tmp_path / "a.tar")[0].tags == (TAG,)


@pytest.mark.parametrize(
    "manifest",
    ["{}x", '{"a": 1}', "null", "[1]", "[{}]", '[{"Config": 1}]', "[]", "[" * 200_000],
    ids=range(8),
)
def test_an_archive_with_another_manifest_is_none(tmp_path: Path, manifest: str) -> None:
    path = tmp_path / "images.tar"
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(manifest)
        archive.addfile(member, io.BytesIO(manifest.encode()))
    with pytest.raises(BuildError, match="is no image archive"):
        read_archive(path)


def test_what_is_no_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_text("hello")
    with pytest.raises(BuildError, match="is no image archive"):
        read_archive(tmp_path / "a.tar")
    with pytest.raises(BuildError, match="cannot be read"):
        read_archive(tmp_path / "missing.tar")


def test_an_image_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not made by sparkdeploy"):
        read_archive(write(tmp_path / "a.tar", files("foreign")))


def member(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> Member:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, link, len(data)
    return entry, data


@pytest.mark.parametrize(
    ("added", "said"),
    [
        (member("./manifest.json", b"[]"), r"holds \./manifest\.json, which no image archive has"),
        (member("manifest.json", b"[]"), "holds manifest.json twice"),
        (member("x/../manifest.json", b"[]"), "which no image archive has"),
        (member("../manifest.json", b"[]"), "which no image archive has"),
        (member("/manifest.json", b"[]"), "which no image archive has"),
        (member("blobs//sha256", b"x"), "which no image archive has"),
        (member("l2/layer.tar", kind=tarfile.SYMTYPE, link="/etc/shadow"), "leads elsewhere"),
        (member("l2/layer.tar", kind=tarfile.SYMTYPE, link="../manifest.json"), "leads elsewhere"),
        (member("l2/layer.tar", kind=tarfile.LNKTYPE, link="l1/layer.tar"), "no regular file"),
        (member("l2/layer.tar", kind=tarfile.FIFOTYPE), "no regular file"),
        (member("index.json", kind=tarfile.CHRTYPE), "no regular file"),
    ],
)
def test_what_another_reader_takes_for_something_else_is_refused(
    tmp_path: Path, added: Member, said: str
) -> None:
    path = write(tmp_path / "a.tar", files())
    with tarfile.open(path, "a") as archive:
        archive.addfile(added[0], io.BytesIO(added[1]))
    for read in (read_archive, list_archive):
        with pytest.raises(BuildError, match=said):
            read(path)


@pytest.mark.parametrize("name", ["manifest.json", "PaxHeaders/x"])
def test_a_list_or_header_of_gigabytes_is_not_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.tar"
    entry = tarfile.TarInfo(name)
    entry.size = 3 << 30
    entry.type = tarfile.REGTYPE if name == "manifest.json" else tarfile.XHDTYPE
    with path.open("wb") as file:
        file.write(entry.tobuf(tarfile.USTAR_FORMAT))
        file.truncate(512 + entry.size + 1024)
    tracemalloc.start()
    try:
        with pytest.raises(BuildError, match=r"too large|larger than"):
            read_archive(path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


class Engine:
    """One that loads what it likes of an archive."""

    def __init__(self, loaded: ImageFact) -> None:
        self.loaded = loaded
        self.removed: list[str] = []

    def load_images(self, archive: IO[bytes]) -> None:
        with tarfile.open(fileobj=archive) as opened:
            assert opened.getnames()

    def find_image(self, _: str) -> ImageFact:
        return self.loaded

    def remove_image(self, reference: str) -> None:
        self.removed.append(reference)


@pytest.mark.parametrize(
    ("config", "layers", "is_taken"),
    [
        ({}, (LAYER,), True),
        ({}, (b"another layer",), False),
        ({}, (), False),
        ({"Entrypoint": ["/evil"]}, (LAYER,), False),
        ({"Env": ["PYTHONPATH=/evil"]}, (LAYER,), False),
    ],
)
def test_what_was_loaded_is_what_was_verified(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, object],
    layers: tuple[bytes, ...],
    is_taken: bool,
) -> None:
    found = read_image(
        {
            "Id": "sha256:1",
            "RepoTags": [TAG],
            "Config": {"Labels": {labels.KIND: "image"}, **config},
            "RootFS": {"Layers": [f"sha256:{sha256(layer)}" for layer in layers]},
        }
    )
    engine = Engine(found)
    monkeypatch.setattr(image_shelf, "connect", lambda _: contextlib.nullcontext(engine))
    path = write(tmp_path / "a.tar", files())
    if is_taken:
        assert image_shelf.import_images(path, None, load_settings())
    else:
        with pytest.raises(NodeError, match="is not what the archive holds"):
            image_shelf.import_images(path, None, load_settings())
    assert bool(engine.removed) != is_taken
