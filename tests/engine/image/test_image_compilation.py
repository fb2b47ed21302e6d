"""The container that compiles vLLM, with one line in the compiler's place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy.image.compilation import compile_spec
from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import until
from tests.engine.shipped_stages import shipped_stages

pytestmark = pytest.mark.docker


def test_a_compiler_of_this_user_writes_to_our_folders_and_nowhere_else(
    host: DockerHost, python_base_image: str, tmp_path: Path
) -> None:
    for name in ("in/network", "work", "wheels", "ccache"):
        (tmp_path / name).mkdir(parents=True)
    stage = replace(shipped_stages()[1], below=python_base_image)
    spec = compile_spec(
        stage,
        tmp_path / "in",
        tmp_path / "work",
        wheels=tmp_path / "wheels",
        ccache=tmp_path / "ccache",
    )
    writes = "touch /work/made /wheels/made /ccache/made && ! touch /compile/made"
    host.remove(spec.name)
    container_id = host.create(replace(spec, command=("-c", writes)))
    try:
        host.start(container_id)
        until(lambda: not host.inspect(container_id)["State"]["Running"])
        found = host.find_container(container_id)
        assert found is not None
        assert found.exit_code == 0, b"".join(host.logs(container_id))
    finally:
        host.remove(container_id)
    for name in ("work", "wheels", "ccache"):
        made = tmp_path / name / "made"
        assert made.stat().st_uid == tmp_path.stat().st_uid
