"""A real Prometheus and node-exporter run by our files, over a replayed page of vLLM's metrics."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sparkdeploy.deploy.serving import ServedDeployment
from sparkdeploy.export.neighbours import prometheus_export, write_export
from sparkdeploy.settings import load_settings
from tests.engine.conftest import free_port, until
from tests.engine.neighbours import (
    dashboard_expressions,
    exporter,
    prometheus,
    promtool_checks,
    without_data,
)

pytestmark = pytest.mark.runs("export")

PAGE = Path(__file__).parents[2] / "unit" / "server" / "metrics" / "cpu-0.32-mtp-2.txt"
KEY = "a key of this test"
COUNTED = re.compile(r"^(vllm:\w+_(?:total|bucket|sum|count)(?:\{.*\})?) (\S+)$", re.MULTILINE)


class Replayed(ThreadingHTTPServer):
    """The recorded page, in which all that counts grows by its own amount each second."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Page)
        self.page = PAGE.read_text()
        self.began_s = time.monotonic()
        self.refused = 0

    def text(self) -> str:
        grown = 1 + time.monotonic() - self.began_s
        return COUNTED.sub(lambda it: f"{it[1]} {float(it[2]) * grown}", self.page)


class _Page(BaseHTTPRequestHandler):
    server: Replayed

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {KEY}":
            self.server.refused += 1
            self.send_error(401)
            return
        body = self.server.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def page() -> Iterator[Replayed]:
    with Replayed(free_port()) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(page: Replayed, tmp_path: Path) -> Path:
    """What `export prometheus -o` writes for a deployment with a key."""
    key_file = tmp_path / "keys" / "main"
    key_file.parent.mkdir()
    key_file.write_text(f"{KEY}\n")
    port = page.server_address[1]
    served = ServedDeployment("main", "mtp-2", port, ("qwen",), key_file)
    export = prometheus_export((served,), "0:0", load_settings({}).hosts)
    write_export(replace(export, user="0:0"), tmp_path / "watch")
    return tmp_path / "watch"


def test_prometheus_finds_no_fault_with_what_is_written(folder: Path) -> None:
    """Both kinds of check, and that they find a fault that is there."""
    promtool_checks("config", folder / "prometheus.yml")
    promtool_checks("rules", folder / "rules.yml")
    (folder / "rules.yml").write_text("groups: [{name: x, rules: [{record: a, expr: 'sum('}]}]\n")
    with pytest.raises(subprocess.CalledProcessError):
        promtool_checks("config", folder / "prometheus.yml")


def test_every_expression_of_the_dashboard_has_data(page: Replayed, folder: Path) -> None:
    expressions = dashboard_expressions()
    with exporter(folder) as exporter_port, prometheus(folder, exporter_port) as url:
        until(lambda: not without_data(url, expressions))
    assert len(expressions) > 25
    assert page.refused == 0
