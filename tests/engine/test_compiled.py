"""torch.compile under the read-only root, as an unprivileged user, with the real vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engine.program import Program
from tests.engine.test_cli_deployments import RECIPE

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.node.host import DockerHost

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1800)]

PORT = 18095


def test_compiling_works_and_is_kept_for_the_next_start(tmp_path: Path, host: DockerHost) -> None:
    program = Program(tmp_path)
    twin = tmp_path / "twin"
    assert program.run("checkpoint", "twin", str(twin)).returncode == 0
    recipe = tmp_path / "compiled.yaml"
    text = RECIPE.format(twin=twin, port=PORT).replace(
        "enforce_eager: true", "enforce_eager: false"
    )
    recipe.write_text(text)
    try:
        report = program.answer("up", str(recipe), "--name", "compiled", "--yes")
        assert report["changed"] is True
        fact = host.find_container("sparkdeploy-compiled")
        assert fact is not None
        assert host.inspect(fact.container_id)["HostConfig"]["ReadonlyRootfs"] is True
    finally:
        program.run("down", "compiled")
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.suffix in {".so", ".cpp"}]
    assert kept, "nothing compiled was kept in the cache folder"
