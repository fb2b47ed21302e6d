"""Waiting for a container in real Docker."""

import time

import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.health import ContainerDiedError, Readiness, wait_until_answering
from sparkdeploy.server.phases import read_whole
from tests.engine.conftest import (
    DEADLINE_S,
    SpecMaker,
    model_at,
    patiently,
    port_of,
    start_serving,
    until,
)

pytestmark = pytest.mark.docker


def start_and_wait(host: DockerHost, make_spec: SpecMaker, **options: object) -> Readiness:
    spec = make_spec(**options)
    container_id = host.create(spec)
    host.start(container_id)
    with model_at(port_of(spec)) as model:
        return wait_until_answering(host, container_id, model, deadline_s=DEADLINE_S)


def test_a_start_is_followed_to_its_first_answer(host: DockerHost, make_spec: SpecMaker) -> None:
    readiness = start_and_wait(host, make_spec, log="spark-0.19-mtp", lines_per_s=300)
    assert readiness.answer.text == " Paris"
    assert readiness.facts.fp8_layers == 144
    assert {"weights", "draft", "compiling", "graphs", "answering"} <= set(readiness.phases_s)


def test_a_container_that_dies_at_once_is_told_within_two_seconds(
    host: DockerHost, make_spec: SpecMaker
) -> None:
    started_s = time.monotonic()
    with pytest.raises(ContainerDiedError, match="exit code 7") as caught:
        start_and_wait(
            host, make_spec, die_after_s=0, exit_code=7, crash_log="crashes/missing_tensor"
        )
    assert time.monotonic() - started_s < patiently(4)  # two seconds for Docker to start it at all
    assert caught.value.cause.name == "missing_tensor"
    assert "shared_expert.gate_proj.weight_scale_inv" in caught.value.message
    assert caught.value.exit_code == 7


def test_the_log_of_a_running_container_can_be_let_go(
    host: DockerHost, make_spec: SpecMaker
) -> None:
    container_id = start_serving(host, make_spec(log="cpu-0.32-mtp"))
    with host.open_log(container_id) as log:
        first = next(iter(log))
    assert first
    # The server may answer before Docker has written its last words down.
    until(lambda: read_whole(host.logs(container_id)).phase.name == "answering")


def test_a_log_that_is_let_go_before_its_first_read_ends(
    host: DockerHost, make_spec: SpecMaker
) -> None:
    container_id = start_serving(host, make_spec(log="cpu-0.32-mtp"))
    with host.open_log(container_id) as log:
        pass
    assert list(log) == []


def test_a_log_whose_connection_ends_before_its_first_read_broke_off(
    host: DockerHost, make_spec: SpecMaker
) -> None:
    container_id = start_serving(host, make_spec(log="cpu-0.32-mtp"))
    with host.open_log(container_id) as log:
        log.release()
        with pytest.raises(NodeError, match="the log broke off"):
            list(log)


def test_what_a_container_takes_of_memory_is_measured(
    host: DockerHost, make_spec: SpecMaker
) -> None:
    container_id = start_serving(host, make_spec(allocate_mib=200))
    until(lambda: (host.memory_bytes(container_id) or 0) > 200 << 20)
    assert (host.memory_bytes(container_id) or 0) < 300 << 20
    host.remove(container_id)
    assert host.memory_bytes(container_id) is None
