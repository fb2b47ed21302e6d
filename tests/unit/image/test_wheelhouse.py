"""Fetching wheels from a small index of the test's own."""

import contextlib
import hashlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdeploy.errors import BuildError
from sparkdeploy.image import lock, wheelhouse
from sparkdeploy.image.lock import LockedPackage, PackagePin, WheelPlatform
from sparkdeploy.image.wheelhouse import PackageIndex, Wheelhouse
from sparkdeploy.settings import BuildNetwork, resources
from sparkdeploy.upkeep.images import _indexes

from .conftest import LoadEngine, MakeSettings

pytestmark = pytest.mark.outside

WHEEL = "a_b-1.0-py3-none-any.whl"
CONTENT = b"a wheel"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
SPARK = WheelPlatform("aarch64", "3.11")
PACKAGE = LockedPackage(PackagePin("a-b", "1.0"), frozenset({DIGEST}))


class Index:
    """What the index serves, and what it was asked."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.asked: list[str] = []
        self.url = ""

    def offer_json(self, filename: str, digest: str, content: bytes = CONTENT) -> None:
        file = {"filename": filename, "url": f"../../f/{filename}", "hashes": {"sha256": digest}}
        page = json.dumps({"files": [file]}).encode()
        self.pages["/simple/a-b/"] = ("application/vnd.pypi.simple.v1+json", page)
        self.pages[f"/f/{filename}"] = ("application/octet-stream", content)

    def offer_html(self, filename: str, digest: str) -> None:
        page = f'<a href="/f/{filename}#sha256={digest}">x</a><a href="/f/other">y</a>'
        self.pages["/simple/a-b/"] = ("text/html", page.encode())
        self.pages[f"/f/{filename}"] = ("application/octet-stream", CONTENT)


class Endless(http.server.BaseHTTPRequestHandler):
    """Sends a page that has no end: fast, or a byte at a time."""

    piece, pause_s = b"", 0.0

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(self.piece)
                time.sleep(self.pause_s)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("piece", "pause_s", "words"), [(b"x" * 65536, 0.0, "more than 1 MiB"), (b"x", 0.01, "time")]
)
def test_a_page_without_an_end_is_given_up(
    piece: bytes, pause_s: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheelhouse, "MAX_PAGE_BYTES", 1 << 20)
    monkeypatch.setattr(wheelhouse, "PAGE_LIMIT_S", 5.0 if pause_s == 0 else 0.3)
    kind = type("Handler", (Endless,), {"piece": piece, "pause_s": pause_s})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        named = PackageIndex(f"http://127.0.0.1:{server.server_port}/simple", "index_url")
        with pytest.raises(BuildError, match="does not answer") as failure:
            Wheelhouse(tmp_path, SPARK, (named,)).fetch([PACKAGE], on_wheel=lambda _: None)
        server.shutdown()

    assert words in (failure.value.detail or "")


@pytest.fixture
def index() -> Iterator[Index]:
    served = Index()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            kind, content = served.pages.get(self.path, ("", b""))
            self.send_response(200 if kind else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_port}/simple"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield served
        server.shutdown()


def fetch(
    index: Index, folder: Path, package: LockedPackage = PACKAGE, folders: tuple[Path, ...] = ()
) -> list[str]:
    seen: list[Path] = []
    indexes = (PackageIndex(index.url, "index_url"),)
    Wheelhouse(folder, SPARK, indexes, folders).fetch([package], on_wheel=seen.append)
    assert not list(folder.glob(".*"))
    return [path.name for path in seen]


@pytest.mark.parametrize("kind", ["json", "html"])
def test_a_wheel_of_the_lock_is_fetched_and_not_again(
    index: Index, tmp_path: Path, kind: str
) -> None:
    (index.offer_json if kind == "json" else index.offer_html)(WHEEL, DIGEST)
    assert fetch(index, tmp_path) == [WHEEL]
    assert (tmp_path / WHEEL).read_bytes() == CONTENT
    asked = len(index.asked)
    assert fetch(index, tmp_path) == [WHEEL]
    assert len(index.asked) == asked


def test_a_wheel_that_was_tampered_with_is_fetched_anew(index: Index, tmp_path: Path) -> None:
    index.offer_json(WHEEL, DIGEST)
    (tmp_path / WHEEL).write_bytes(b"other")
    fetch(index, tmp_path)
    assert (tmp_path / WHEEL).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("filename", "digest"),
    [(WHEEL, "0" * 64), ("a_b-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", DIGEST)],
    ids=["another-hash", "another-platform"],
)
def test_a_file_that_the_lock_does_not_mean_is_not_taken(
    index: Index, tmp_path: Path, filename: str, digest: str
) -> None:
    index.offer_json(filename, digest)
    with pytest.raises(BuildError, match=r"no index has a-b 1\.0 for aarch64"):
        fetch(index, tmp_path)


def test_an_index_that_does_not_answer_is_named_by_its_host_only(tmp_path: Path) -> None:
    gone = Index()
    gone.url = "http://127.0.0.1:9/simple"
    with pytest.raises(BuildError, match=r"127\.0\.0\.1 does not answer"):
        fetch(gone, tmp_path)


@pytest.mark.parametrize(
    ("engine", "setting", "names"),
    [
        ("cpu-0.32", "torch_cpu_index", {"torch"}),
        ("cuda-0.19", "torch_cuda_index", {"torch", "torchvision", "torchaudio"}),
        ("cuda-0.25", "torch_cuda_index", set()),
    ],
)
def test_each_engine_takes_torch_from_the_index_of_its_kind(
    load: LoadEngine, make_settings: MakeSettings, engine: str, setting: str, names: set[str]
) -> None:
    found = load(engine)
    files = lock.lock_files(found, architecture="aarch64", resources=resources())
    torch = lock.read_packages(files["torch.txt"].read_text()) if "torch.txt" in files else ()
    settings = make_settings(BuildNetwork(extra_index_urls=("https://more.test/simple",)))
    indexes = list(_indexes(found, settings, torch))
    assert [item.setting for item in indexes] == ["index_url", "PIP_EXTRA_INDEX_URL", setting]
    assert set(indexes[-1].packages or ()) == names
