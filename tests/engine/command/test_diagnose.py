"""Evidence of a failure and the file for a bug report, with a secret planted everywhere."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.deploy.evidence import ROOT_CAUSE, save_evidence
from tests.engine.conftest import SpecMaker, until
from tests.engine.program import Program

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.node.host import DockerHost

pytestmark = [pytest.mark.docker, pytest.mark.runs("diagnose")]
KEY = "a-key-that-nobody-may-see"


@pytest.fixture
def program(tmp_path: Path, deployment: str) -> Program:
    made = Program(tmp_path)
    keys = tmp_path / "state" / "keys"
    keys.mkdir(parents=True)
    (keys / deployment).write_text(KEY)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.yaml").write_text(f"index_url: https://u:{KEY}@host/simple\n")
    return made


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]


def test_a_failure_is_packed_with_its_cause_and_without_secrets(
    host: DockerHost, make_spec: SpecMaker, program: Program, deployment: str
) -> None:
    text = f"{KEY} Bearer {KEY}"
    container_id = host.create(make_spec(die_after_s=0, exit_code=86, say=text))
    host.start(container_id)
    until(lambda: not host.inspect(container_id)["State"]["Running"])
    crashes = program.root / "state" / "crashes"
    folder = save_evidence(
        host,
        container_id,
        crashes,
        deployment=deployment,
        details={"plan": {"key": KEY}, "memory_curve": [{"at_s": 0.0, "available_bytes": 1}]},
    )
    assert (folder / ROOT_CAUSE).read_text().startswith("memory_floor: the memory guard stopped")

    bundle = program.root / "report.tar.gz"
    done = program.answer("diagnose", deployment, "--output", str(bundle))

    found = contents(bundle)
    assert set(done["files"]) == set(found)
    assert {"crash/00-root-cause.txt", "crash/container.log", "crash/inspect.json"} <= set(found)
    assert {"crash/guard.json", "crash/versions.json", "crash/memory_curve.json"} <= set(found)
    assert {"doctor.json", "status.json", "config.yaml", "now/container.log"} <= set(found)
    assert json.loads(found["crash/versions.json"])["docker"] == host.info().version
    assert done["root_cause"].startswith("memory_floor")
    assert KEY not in "".join(content.decode() for content in found.values())
    assert bundle.stat().st_mode & 0o077 == 0
