"""torch.compile under the read-only root, as an unprivileged user, with the real vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import free_port
from tests.engine.vllm.twin_user import TWIN_RECIPE, twin_user, unique_name

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.runs("checkpoint", "down", "up"),
]


def test_compiling_works_and_is_kept_for_the_next_start(tmp_path: Path, host: DockerHost) -> None:
    program = twin_user(tmp_path, port=free_port(), enforce_eager=False)
    name = unique_name("compiled")
    try:
        report = program.answer("up", TWIN_RECIPE, "--name", name, "--yes")
        assert report["changed"] is True
        fact = host.find_container(f"sparkdeploy-{name}")
        assert fact is not None
        assert host.inspect(fact.container_id)["HostConfig"]["ReadonlyRootfs"] is True
    finally:
        program.run("down", "--yes", name)
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.suffix in {".so", ".cpp"}]
    assert kept, "nothing compiled was kept in the cache folder"
