"""Faults of a container, the Docker Engine, its disk and the clock, with the real vLLM.

It runs on an engine of the tests' own that may be killed and filled, to which the images of the
machine's engine are carried. A start takes most of a minute.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.deploy.deployments import Inspected, find_deployment
from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.client import ServedModel
from tests.engine.conftest import until
from tests.engine.small_engine import SmallEngine, small_engine
from tests.engine.stand_in.engine import copy_image
from tests.engine.stand_in.warm_cli import Running, WarmCli
from tests.engine.vllm.twin_user import TWIN_RECIPE, twin_user

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.runs("checkpoint", "plan", "rollback", "status", "up"),
]

PORT = 8000
"""The engine has a network of its own."""
LOADING_MIB = 7168
"""Docker unpacks an archive beside the images that it makes of it; the disk is memory."""
ROOM_MIB = 256
START_TIMEOUT_S = 600.0
DAY_S = 86400.0


@dataclass
class Place:
    """The real vLLM on one engine, one user, one deployment; a version is its batch size."""

    engine: SmallEngine
    cli: WarmCli

    def start(self, sequences: int, *, clock_offset_s: float = 0.0) -> Running:
        """Start `up` of a version."""
        return self.cli.start(
            *("up", TWIN_RECIPE, "--yes", "--set", f"serve.max_num_seqs={sequences}"),
            clock_offset_s=clock_offset_s,
        )

    def up(self, sequences: int, *, clock_offset_s: float = 0.0) -> tuple[int, str]:
        """Run `up` of a version to its end."""
        running = self.start(sequences, clock_offset_s=clock_offset_s)
        return running.wait(), running.said()

    def deployment(self) -> Inspected:
        """What there is of it."""
        with DockerHost(self.engine.address) as host:
            found = find_deployment(host, "main")
        assert found is not None
        return found

    def is_loading(self, sequences: int) -> bool:
        """Say whether this version's vLLM has come to its arguments."""
        with DockerHost(self.engine.address) as host:
            found = find_deployment(host, "main")
            if found is None or found.serving is None or not found.serving.is_running:
                return False
            container_id = found.serving.container_id
            log = b"".join(host.logs(container_id, this_run=True))
        return self.version(container_id) == sequences and b"non-default args" in log

    def version(self, container_id: str) -> int:
        """Return which version a container is of."""
        with DockerHost(self.engine.address) as host:
            argv = host.inspect(container_id)["Args"]
        return int(argv[argv.index("--max-num-seqs") + 1])

    def servers(self) -> int:
        """How many vLLMs run, in a container that is known or in one that was forgotten."""
        return len(self.engine.processes(b"bin/vllm\0serve"))

    def check_whole(self, sequences: int) -> None:
        """This version runs alone and answers; nothing is half done."""
        with ServedModel(f"http://127.0.0.1:{PORT}") as model:
            until(model.is_healthy, timeout_s=START_TIMEOUT_S)
            assert model.complete("x", 1).text
        found = self.deployment()
        assert not found.is_half_replaced
        assert found.serving is not None
        assert found.serving.is_running
        assert self.version(found.serving.container_id) == sequences
        assert [fact.name for fact in found.kept if fact.is_running] == []
        until(lambda: self.servers() == 1)


@pytest.fixture(scope="module")
def vllm(host: DockerHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("faults-vllm-engine")
    program = twin_user(root, port=PORT)
    program.answer("up", TWIN_RECIPE, "--prepare", "--yes")
    tags = [item["tag"] for item in program.answer("plan", TWIN_RECIPE)["images"]]
    with small_engine(LOADING_MIB) as engine:
        with DockerHost(engine.address) as own:
            copy_image(host, own, *tags)
        engine.resize(engine.used_mib() + ROOM_MIB)
        env = {**program.env, "DOCKER_HOST": engine.address}
        with engine.network(), WarmCli(env, root, deadline_s=700) as cli:
            place = Place(engine, cli)
            code, said = place.up(4)
            assert code == 0, said
            yield place


def test_an_engine_that_dies_while_vllm_starts_is_recovered_from(vllm: Place) -> None:
    vllm.check_whole(4)
    command = vllm.start(2)
    until(lambda: vllm.is_loading(2), timeout_s=START_TIMEOUT_S)
    vllm.engine.kill()

    assert command.wait() in {4, 7}, command.said()
    assert "Traceback" not in command.said()
    assert vllm.cli.run("status")[0] == 4
    vllm.engine.start()
    code, said = vllm.up(2)
    assert code == 0, said
    vllm.check_whole(2)


def test_a_container_killed_while_vllm_starts_brings_the_old_one_back(vllm: Place) -> None:
    command = vllm.start(3)
    until(lambda: vllm.is_loading(3), timeout_s=START_TIMEOUT_S)
    with DockerHost(vllm.engine.address) as host:
        found = vllm.deployment().serving
        assert found is not None
        host._api.kill(found.container_id, "KILL")

    assert command.wait() == 7, command.said()
    assert "137" in command.said()
    vllm.check_whole(2)


def test_a_full_disk_of_the_engine_brings_the_old_vllm_back(vllm: Place) -> None:
    vllm.engine.fill(leave_bytes=16 << 10)
    try:
        code, said = vllm.up(3)
        assert code in {4, 7}, said
        assert "Traceback" not in said
    finally:
        vllm.engine.free()

    # Where a full disk did not let the old one start again, the next command does that.
    if vllm.deployment().is_half_replaced:
        code, said = vllm.cli.run("rollback")
        assert code == 0, said
    vllm.check_whole(2)


def test_a_clock_that_jumps_while_vllm_starts_leaves_every_way_open(vllm: Place) -> None:
    command = vllm.start(3)
    until(lambda: vllm.is_loading(3), timeout_s=START_TIMEOUT_S)
    command.send(signal.SIGKILL)
    command.wait()

    for offset_s in (-DAY_S, DAY_S):
        code, said = vllm.cli.run("status", clock_offset_s=offset_s)
        assert code == 0
        assert "half replaced" in said
    code, said = vllm.cli.run("rollback", clock_offset_s=DAY_S)
    assert code == 0, said
    vllm.check_whole(2)
    code, said = vllm.up(3, clock_offset_s=-DAY_S)
    assert code == 0, said
    vllm.check_whole(3)
