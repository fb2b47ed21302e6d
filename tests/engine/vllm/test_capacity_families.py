"""The planner's cache against the real vLLM's own words, for small models of many families.

`python -m tests.engine.vllm.test_capacity_families FILE` writes down what it says, for
tests/unit/estimate/test_recorded_families.py.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkdeploy.checkpoint.tiny_model.build import config_files
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import TEST_LABEL
from tests.engine.shipped_stages import build_all, shipped_stages
from tests.families.cases import CASES, Case, hold

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1800)]

PROGRAM = Path(__file__).parent / "inside" / "log_of_family.py"


def said_by_vllm(host: DockerHost, folder: Path, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Start vLLM once for each case, in one container of the CPU engine."""
    _, image = build_all(host, shipped_stages())[-1]
    (folder / "cases.json").write_text(json.dumps([case.as_dict() for case in cases]))
    (folder / PROGRAM.name).write_text(PROGRAM.read_text())
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    for name, content in config_files(TinyShape()).items():
        if name.startswith(("tokenizer", "preprocessor", "video")):
            (tokenizer / name).write_text(json.dumps(content))
    with contextlib.closing(docker.from_env()) as client:
        client.containers.run(
            image.image_id,
            entrypoint=["/opt/venv/bin/python", f"/lab/{PROGRAM.name}", "/lab/cases.json"],
            command=["/lab/results.json"],
            volumes={str(folder): {"bind": "/lab"}},
            network_mode="none",
            shm_size="1g",
            environment={"HF_HUB_OFFLINE": "1", "HOME": "/tmp"},
            labels={TEST_LABEL: "families"},
            remove=True,
        )
    found: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())
    return found


@pytest.fixture(scope="module")
def said(host: DockerHost, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found = said_by_vllm(host, tmp_path_factory.mktemp("families"), CASES)
    return {item["name"]: item for item in found}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_planner_says_what_vllm_logs(case: Case, said: dict[str, dict[str, Any]]) -> None:
    found = said[case.name]
    if "error" in found:
        pytest.skip(f"vLLM does not start it on a CPU: {found['error']}")
    hold(case.family, found)


if __name__ == "__main__":
    with DockerHost(None) as here, tempfile.TemporaryDirectory() as lab:
        Path(sys.argv[1]).write_text(
            json.dumps(said_by_vllm(here, Path(lab), CASES), indent=1) + "\n", encoding="utf-8"
        )
