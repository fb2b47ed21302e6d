"""TurboQuant with and without drafts, token by token, inside the real vLLM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.checkpoint.twin.build import build_twin
from sparkdeploy.checkpoint.twin.shape import TwinShape
from tests.engine.inside.containers import python_in
from tests.engine.inside.test_checkpoint_readers import engine_image

if TYPE_CHECKING:
    from sparkdeploy.node.host import DockerHost

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("host"),
]

PROGRAM = Path(__file__).parent / "plugin_checks" / "turboquant_tokens.py"
FORMATS = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")


@pytest.mark.parametrize("cache_dtype", FORMATS)
def test_a_token_attends_alike_with_and_without_drafts(
    host: DockerHost, mark: str, tmp_path: Path, cache_dtype: str
) -> None:
    """A twin's grammar decides its text, so that equal texts say little of its attention."""
    build_twin(tmp_path / "twin", TwinShape(), seed=1)
    shutil.copy(PROGRAM, tmp_path)
    command = [f"/lab/{PROGRAM.name}", "/lab/twin", cache_dtype]
    output = python_in(engine_image(host), tmp_path, mark, command)
    found = json.loads(output.splitlines()[-1])
    print(found)
    assert found["same_text"]
    assert found["verified_together"] == 3
    assert len(found["layers"]) == 1
    # What is found is BF16; the token before shows what a wrong one would look like.
    assert max(found["apart"], found["from_fp64"]) < 0.01
    assert found["from_the_token_before"] > 0.3
