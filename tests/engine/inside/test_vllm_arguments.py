"""The committed arguments of an engine, held against the real vLLM in its image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import resources
from tests.engine.inside.containers import python_in
from tests.engine.shipped_stages import build_all, shipped_stages

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

ENGINE = "cpu-0.32"
PROGRAM = Path(__file__).parents[3] / "sparkdeploy" / "image" / "inside" / "arguments.py"


# Both change with an engine's release.
@pytest.mark.slow
def test_the_engine_says_of_itself_what_is_committed(host: DockerHost) -> None:
    _, image = build_all(host, shipped_stages(ENGINE))[-1]
    said = python_in(image.image_id, PROGRAM.parent, "arguments", [f"/lab/{PROGRAM.name}"])
    told = json.loads(said[said.index("{\n") :])
    committed = resources() / "recipes" / "engines" / "arguments" / f"{ENGINE}.json"
    assert told == json.loads(committed.read_text(encoding="utf-8"))
