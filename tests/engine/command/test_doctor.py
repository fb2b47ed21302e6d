"""The doctor on this very machine: with its engine, with a silent one, with nothing at all."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import until
from tests.engine.program import Program

pytestmark = pytest.mark.runs("doctor")

PATIENCE_S = 180.0
"""The doctor promises three; a loaded machine starts Python late. What hangs takes 600."""


@pytest.fixture
def silent_engine(tmp_path: Path) -> Iterator[str]:
    """The address of a socket that takes connections and never answers."""
    path = tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        yield f"unix://{path}"


def doctor(folder: Path, **env: str) -> tuple[dict[str, Any], float]:
    """Run it; return its report by check, and how long it took."""
    started_s = time.monotonic()
    done = Program(folder, env).run("doctor", "v2", "--json")
    duration_s = time.monotonic() - started_s
    assert done.returncode in {0, 4}, done.stderr
    assert "Traceback" not in done.stderr
    content = json.loads(done.stdout)
    assert (done.returncode == 4) == (content["verdict"] == "fail")
    return {item["check"]: item for item in content["checks"]}, duration_s


@pytest.mark.docker
def test_a_machine_with_an_engine(host: DockerHost, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def is_seen() -> bool:
        """A loaded machine's engine may say hello later than the doctor waits."""
        seen[:] = [doctor(tmp_path)[0]]
        return bool(seen[0]["docker.engine"]["verdict"] == "ok")

    until(is_seen)
    assert host.info().version in seen[0]["docker.engine"]["seen"]


def test_an_engine_and_a_driver_that_hang_cost_no_more_time(
    silent_engine: str, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    hanging = programs / "nvidia-smi"
    hanging.write_text("#!/bin/sh\nexec sleep 600\n")
    hanging.chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    found, duration_s = doctor(tmp_path, DOCKER_HOST=silent_engine, PATH=path)
    assert "did not answer" in found["docker.engine"]["seen"]
    assert found["machine.gpu"]["verdict"] in {"fail", "not seen"}
    assert duration_s < PATIENCE_S


def test_a_machine_without_programs_and_engine(tmp_path: Path) -> None:
    found, _ = doctor(tmp_path, DOCKER_HOST=f"unix://{tmp_path}/none.sock", PATH=str(tmp_path))
    assert found["docker.engine"]["verdict"] == "fail"
