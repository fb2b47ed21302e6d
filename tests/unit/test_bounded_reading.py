"""What others write is read up to a size, until a time, and in linear time."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from sparkdeploy.errors import UnhealthyError
from sparkdeploy.recipe.foreign.secrets import masked
from sparkdeploy.secret_shapes import text_without_secrets
from sparkdeploy.server import bounded
from sparkdeploy.server.client import ServedModel
from sparkdeploy.terminal import visible_log

SIZE = 20_000
TEXTS = {
    text: (text * SIZE)[:SIZE]
    for text in (
        "a-",
        "\r",
        "a",
        ".",
        "'",
        "[",
        "--",
        "eyJ",
        "://",
        "ssh://",
        "\x1b[",
        "-eyJ",
    )
} | {
    "token": "token=" + " " * SIZE,
    "cookie": "cookie:" * (SIZE // 7),
    "secret": "secret-" * (SIZE // 7),
    "begin": "-----BEGIN PRIVATE KEY-----" * (SIZE // 27),
}


@pytest.mark.parametrize("take", [text_without_secrets, masked, visible_log])
@pytest.mark.parametrize("name", TEXTS)
def test_reading_takes_linear_time(name: str, take) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
    started_s = time.process_time()
    take(TEXTS[name])

    assert time.process_time() - started_s < 1


class Endless(BaseHTTPRequestHandler):
    """Answers without an end."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"x" * 65536)
        except OSError:
            return

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize("ask", ["exposition", "version_of_models"])
def test_an_endless_answer_is_given_up(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_ANSWER_BYTES", 1 << 20)
    with HTTPServer(("127.0.0.1", 0), Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with ServedModel(f"http://127.0.0.1:{server.server_port}") as model:
            call = model.exposition if ask == "exposition" else model.served_models
            with pytest.raises(UnhealthyError, match="more than 1 MiB"):
                call()
        server.shutdown()
