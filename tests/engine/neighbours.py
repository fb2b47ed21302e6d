"""LiteLLM, Prometheus and node-exporter, run on this machine by the files that we export."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

import yaml

from sparkdeploy.export.neighbours import SERVICES
from tests.engine.conftest import free_port, until

SHIPPED = yaml.safe_load(SERVICES.read_text())
RELEASE = SHIPPED["litellm"]["image"].rpartition(":v")[2]
ENVIRONMENT = Path("/var/tmp") / f"sparkdeploy-litellm-{RELEASE}"
OPENER = build_opener(ProxyHandler({}))
UNASKED = "deployment:prefix_hits:ratio5m"
"""Of a server that looks for no prefix (on a CPU beside drafts) there is no share."""


@contextlib.contextmanager
def litellm(folder: Path, port: int) -> Iterator[str]:
    """LiteLLM as its container starts it; what would be mounted is read where it lies."""
    (service,) = yaml.safe_load((folder / "compose.yaml").read_text())["services"].values()
    mounted = {it["target"]: str(folder / it["source"]) for it in service["volumes"]}
    words = [
        re.sub(r"/[\w./-]+", lambda it: mounted.get(it[0], it[0]), word.replace("$$", "$"))
        for word in service["entrypoint"]
    ]
    env = {**service["environment"], "PATH": f"{_litellm_programs()}:{os.environ['PATH']}"}
    check = service["healthcheck"]["test"][1:]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(words, cwd=folder, env=env, stdout=log, stderr=log) as process,
    ):
        try:
            until(lambda: subprocess.run(check, env=env, check=False).returncode == 0)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _litellm_programs() -> Path:
    """Return where the release is installed, at first into a folder that later runs find."""
    folder = ENVIRONMENT / "bin"
    if not (ENVIRONMENT / "whole").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
        # Without prisma, which the image has, a key that is missing ends in a bug of LiteLLM's.
        wanted = [f"litellm[proxy]=={RELEASE}", "prisma"]
        subprocess.run([folder / "python", "-m", "pip", "install", "-q", *wanted], check=True)
        (ENVIRONMENT / "whole").touch()
    return folder


def post(url: str, key: str, **body: Any) -> Any:
    return _answer(Request(url, json.dumps(body).encode(), _headers(key)))


def get(url: str, key: str) -> Any:
    return _answer(Request(url, headers=_headers(key)))


def _headers(key: str) -> dict[str, str]:
    told = {"Authorization": f"Bearer {key}"} if key else {}
    return {"Content-Type": "application/json", **told}


def _answer(request: Request) -> Any:
    with OPENER.open(request, timeout=60) as response:
        return json.load(response)


def dashboard_expressions() -> list[str]:
    return [
        target["expr"].replace("$deployment", ".*")
        for panel in json.loads(SERVICES.with_name("dashboard.json").read_text())["panels"]
        for target in panel["targets"]
    ]


def asked(url: str, expression: str) -> list[float]:
    """What Prometheus says of an expression now."""
    query = urlencode({"query": expression})
    with OPENER.open(f"{url}/api/v1/query?{query}", timeout=10) as response:
        result: list[dict[str, Any]] = json.load(response)["data"]["result"]
    return [float(item["value"][1]) for item in result]


def without_data(url: str, expressions: Collection[str]) -> list[str]:
    """Those of which Prometheus knows no figure yet."""
    return [it for it in expressions if not _has_data(it, asked(url, it))]


def _has_data(expression: str, values: list[float]) -> bool:
    may_be_nothing = expression.startswith(UNASKED)
    return bool(values) and (may_be_nothing or all(map(math.isfinite, values)))


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
    with _started("prometheus", *words):
        until(lambda: _is_there(f"http://{address}/-/ready"))
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
        *(word for word in SHIPPED["node-exporter"]["command"] if word.count("=") == 0),
        f"--collector.textfile.directory={folder / 'textfile'}",
    ]
    with _started("prometheus-node-exporter", *words):
        until(lambda: _is_there(f"http://127.0.0.1:{port}/metrics"))
        yield port


def promtool_checks(kind: str, file: Path) -> None:
    """Raises CalledProcessError where it finds a fault."""
    subprocess.run(
        ["promtool", "check", kind, str(file)], capture_output=True, check=True, timeout=60
    )


@contextlib.contextmanager
def _started(*words: str) -> Iterator[None]:
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def _is_there(url: str) -> bool:
    try:
        with OPENER.open(url, timeout=10):
            return True
    except OSError:
        return False
