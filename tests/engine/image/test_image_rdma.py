"""What NCCL needs of a CUDA engine's base to reach RDMA adapters, opened in the base itself."""

import json
from pathlib import Path

import pytest

from sparkdeploy.image.inside import rdma
from sparkdeploy.node.host import DockerHost
from tests.engine.shipped_stages import build_all, shipped_stages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("engine", ["cuda-0.25", "cuda-0.33"])
def test_the_base_opens_libibverbs_and_the_provider_of_mlx5(host: DockerHost, engine: str) -> None:
    ((_, base),) = build_all(host, shipped_stages(engine)[:1])
    program = Path(rdma.__file__).read_text(encoding="utf-8")
    code, said = host.run_once(base.image_id, ["-I", "-c", program], entrypoint=["python3"])
    assert code == 0, said
    told = json.loads(said.splitlines()[-1].removeprefix(rdma.MARK))
    assert told["missing"] == {}
    # There is no adapter here, and ibv_devinfo is there to say so.
    assert "IB devices" in told["devinfo"]


def test_a_base_without_them_is_told_what_it_lacks(host: DockerHost) -> None:
    ((_, base),) = build_all(host, shipped_stages()[:1])
    program = Path(rdma.__file__).read_text(encoding="utf-8")
    code, said = host.run_once(base.image_id, ["-I", "-c", program], entrypoint=["python3"])
    told = json.loads(said.splitlines()[-1].removeprefix(rdma.MARK))
    assert (code, list(told["missing"])) == (0, [rdma.LIBRARY])
    assert told["devinfo"] is None
