"""The login of an index goes to its own host; nothing of ~/.netrc goes anywhere."""

from __future__ import annotations

import base64
import http.server
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import requests

from sparkdeploy.bounded_http import BoundedSession
from sparkdeploy.image.index_requests import index_answer, login_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOGIN = "Basic " + base64.b64encode(b"ada:secret").decode()


@dataclass
class Host:
    """A server that sends each path to another address, or answers `found`."""

    port: int = 0
    sends_to: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url_with_login(self) -> str:
        return f"http://ada:secret@127.0.0.1:{self.port}"


@contextmanager
def served() -> Iterator[Host]:
    host = Host()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host.asked.append((self.path, self.headers.get("Authorization")))
            location = host.sends_to.get(self.path)
            self.send_response(302 if location else 200)
            if location:
                self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(b"found")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        host.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield host
        server.shutdown()


@pytest.fixture
def index() -> Iterator[Host]:
    with served() as host:
        yield host


@pytest.fixture
def other() -> Iterator[Host]:
    with served() as host:
        yield host


@pytest.fixture(autouse=True)
def netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A login for every host, which the HTTP library sends by itself."""
    path = tmp_path / "netrc"
    path.write_text("machine 127.0.0.1 login n password n\ndefault login n password n\n")
    monkeypatch.setenv("NETRC", str(path))


def got(url: str, index_url: str) -> bytes:
    with (
        BoundedSession(10) as session,
        index_answer(session, url, index_url, timeout=10) as answer,
    ):
        return answer.content


def test_the_library_would_send_what_netrc_says(index: Host) -> None:
    requests.get(index.url, timeout=10, allow_redirects=False)
    assert index.asked[0][1] is not None


def test_an_index_without_a_login_gets_none(index: Host) -> None:
    assert got(f"{index.url}/simple/a/", index.url) == b"found"
    assert index.asked == [("/simple/a/", None)]


@pytest.mark.parametrize("is_in_the_address", [False, True])
def test_an_index_gets_its_own_login(index: Host, is_in_the_address: bool) -> None:
    url = index.url_with_login if is_in_the_address else index.url
    assert got(f"{url}/simple/a/", f"{index.url_with_login}/simple") == b"found"
    assert index.asked == [("/simple/a/", LOGIN)]


def test_a_redirect_to_another_port_leaves_the_login_behind(index: Host, other: Host) -> None:
    index.sends_to = {"/a": "/b", "/b": f"{other.url_with_login}/c"}
    other.sends_to = {"/c": f"{index.url}/d"}
    assert got(f"{index.url}/a", index.url_with_login) == b"found"
    assert index.asked == [("/a", LOGIN), ("/b", LOGIN), ("/d", LOGIN)]
    assert other.asked == [("/c", None)]


def test_a_file_on_another_host_gets_no_login(index: Host, other: Host) -> None:
    assert got(f"{other.url_with_login}/f.whl", index.url_with_login) == b"found"
    assert other.asked == [("/f.whl", None)]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "http://[x", "ftp://h/", "https:///x"])
def test_what_is_no_web_address_is_not_followed(index: Host, target: str) -> None:
    index.sends_to = {"/a": target}
    with pytest.raises(requests.RequestException, match="it sends to"):
        got(f"{index.url}/a", index.url)


def test_a_circle_ends(index: Host) -> None:
    index.sends_to = {"/a": "/a"}
    with pytest.raises(requests.TooManyRedirects):
        got(f"{index.url}/a", index.url)
    assert len(index.asked) == 10


@pytest.mark.parametrize(
    "url", ["http://index.test/a", "https://index.test:444/a", "https://x.index.test/a"]
)
def test_another_scheme_port_or_name_is_another_host(url: str) -> None:
    request = requests.Request("GET", url, auth=login_for(url, "https://a:b@index.test/s"))
    assert "Authorization" not in request.prepare().headers
