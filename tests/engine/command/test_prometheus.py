"""A real Prometheus and node-exporter run by our files, over a replayed page of vLLM's metrics."""

from __future__ import annotations

import contextlib
import json
import math
import re
import subprocess
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest

from sparkdeploy.commands.neighbours import write_export
from sparkdeploy.deploy.served import ServedDeployment
from sparkdeploy.export.grafana import dashboard
from sparkdeploy.export.prometheus import COLLECTORS, prometheus_export
from sparkdeploy.settings import load_settings
from tests.engine.conftest import free_port, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.runs("export")

PAGE = Path(__file__).parents[2] / "unit" / "server" / "metrics" / "cpu-0.32-mtp-2.txt"
KEY = "a key of this test"
COUNTED = re.compile(r"^(vllm:\w+_(?:total|bucket|sum|count)(?:\{.*\})?) (\S+)$", re.MULTILINE)
UNASKED = "deployment:prefix_hits:ratio5m"
"""The recorded server looked for no prefix: of nothing there is no share."""
OPENER = build_opener(ProxyHandler({}))


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
    checked("config", folder / "prometheus.yml")
    checked("rules", folder / "rules.yml")
    (folder / "rules.yml").write_text("groups: [{name: x, rules: [{record: a, expr: 'sum('}]}]\n")
    with pytest.raises(subprocess.CalledProcessError):
        checked("config", folder / "prometheus.yml")


def test_every_expression_of_the_dashboard_has_data(page: Replayed, folder: Path) -> None:
    expressions = [
        target["expr"].replace("$deployment", ".*")
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    ]
    with exporter(folder) as exporter_port, prometheus(folder, exporter_port) as url:
        waiting = dict.fromkeys(expressions)
        until(lambda: not still_without_data(url, waiting))
    assert len(expressions) > 25
    assert page.refused == 0


def still_without_data(url: str, waiting: dict[str, None]) -> bool:
    """Take out of `waiting` what has data by now."""
    for expression in list(waiting):
        values = [float(item["value"][1]) for item in asked(url, expression)]
        may_be_nothing = expression.startswith(UNASKED)
        if values and (may_be_nothing or all(map(math.isfinite, values))):
            del waiting[expression]
    return bool(waiting)


def asked(url: str, expression: str) -> list[dict[str, Any]]:
    query = urlencode({"query": expression})
    with OPENER.open(f"{url}/api/v1/query?{query}", timeout=10) as response:
        result: list[dict[str, Any]] = json.load(response)["data"]["result"]
    return result


@contextlib.contextmanager
def prometheus(folder: Path, exporter_port: int) -> Iterator[str]:
    """Run it by our file: but for the address of node-exporter, and how often it looks."""
    file, address = folder / "prometheus.yml", f"127.0.0.1:{free_port()}"
    text = file.read_text().replace("127.0.0.1:9100", f"127.0.0.1:{exporter_port}")
    file.write_text(re.sub(r'(_interval: )"\d+s"', r'\1"1s"', text))
    words = [
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    with started("prometheus", *words):
        until(lambda: is_there(f"http://{address}/-/ready"))
        yield f"http://{address}"


@contextlib.contextmanager
def exporter(folder: Path) -> Iterator[int]:
    """Run node-exporter as the Compose file does, with figures of a GPU in its folder."""
    lines = [
        f'sparkdeploy_gpu_{name}{{gpu="0"}} 40\n'
        for name in ("power_watts", "clock_megahertz", "temperature_celsius")
    ]
    (folder / "textfile" / "gpu-0.prom").write_text("".join(lines))
    port = free_port()
    words = [
        f"--web.listen-address=127.0.0.1:{port}",
        "--collector.disable-defaults",
        *(f"--collector.{name}" for name in COLLECTORS),
        f"--collector.textfile.directory={folder / 'textfile'}",
    ]
    with started("prometheus-node-exporter", *words):
        until(lambda: is_there(f"http://127.0.0.1:{port}/metrics"))
        yield port


@contextlib.contextmanager
def started(*words: str) -> Iterator[None]:
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def is_there(url: str) -> bool:
    try:
        with OPENER.open(url, timeout=10):
            return True
    except OSError:
        return False


def checked(kind: str, file: Path) -> None:
    subprocess.run(
        ["promtool", "check", kind, str(file)], capture_output=True, check=True, timeout=60
    )
