"""Replacing a deployment in real Docker: success, failure, interruption, a CLI that is killed."""

import dataclasses
import json
from pathlib import Path

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.recovery import Recovery, recover
from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import ContainerSpec
from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.health import ContainerDiedError, Readiness, wait_until_answering
from tests.engine.conftest import (
    DEADLINE_S,
    SpecMaker,
    crashes_in,
    free_port,
    model_at,
    port_of,
    until,
)
from tests.engine.stand_in.replacing import put_in_place
from tests.launching import begin, launch_on

pytestmark = pytest.mark.docker


def up(host: DockerHost, spec: ContainerSpec, crashes_dir: Path) -> Readiness:
    def wait(container_id: str) -> Readiness:
        with model_at(port_of(spec)) as model:
            return wait_until_answering(host, container_id, model, deadline_s=DEADLINE_S)

    return put_in_place(
        host,
        spec,
        crashes_dir=crashes_dir,
        wait=wait,
        details={"plan": {"recipe": "stand-in"}},
    )


def recovered(host: DockerHost, deployment: str, crashes_dir: Path) -> Recovery:
    return recover(launch_on(host, deployment, crashes_dir), find_deployment(host, deployment))


def text_served_at(port: int) -> str:
    with model_at(port) as model:
        until(model.is_healthy)
        return model.complete("x", 1).text


def containers_of(host: DockerHost, deployment: str) -> list[tuple[str, str]]:
    return [
        (fact.name, fact.state) for fact in host.own_containers() if fact.deployment == deployment
    ]


def test_a_first_start_that_dies_leaves_evidence_and_no_container(
    host: DockerHost, make_spec: SpecMaker, deployment: str, tmp_path: Path
) -> None:
    with pytest.raises(ContainerDiedError, match="evidence: ") as caught:
        up(
            host,
            make_spec(die_after_s=0, exit_code=9, crash_log="crashes/cuda_oom"),
            tmp_path / "crashes",
        )

    assert containers_of(host, deployment) == []
    (folder,) = crashes_in(tmp_path / "crashes")
    assert str(folder) in caught.value.message
    assert "CUDA out of memory" in (folder / "container.log").read_text()
    assert json.loads((folder / "cause.json").read_text())["name"] == "cuda_oom"
    assert json.loads((folder / "plan.json").read_text()) == {"recipe": "stand-in"}
    assert json.loads((folder / "inspect.json").read_text())["State"]["ExitCode"] == 9
    assert "not-to-be-kept" not in (folder / "inspect.json").read_text()
    assert folder.stat().st_mode & 0o077 == 0


def test_an_image_that_is_not_there_leaves_the_old_one_running(
    host: DockerHost, make_spec: SpecMaker, deployment: str, tmp_path: Path
) -> None:
    port = free_port()
    spec = make_spec(port=port, text="old")
    up(host, spec, tmp_path / "crashes")

    with pytest.raises(NodeError, match="create container"):
        up(host, dataclasses.replace(spec, image="sparkdeploy-test/none:0"), tmp_path / "crashes")

    assert text_served_at(port) == "old"


def test_a_foreign_container_with_our_name_is_refused_and_stays(
    host: DockerHost,
    make_spec: SpecMaker,
    foreign_container: str,
    deployment: str,
    tmp_path: Path,
) -> None:
    host.rename(foreign_container, f"sparkdeploy-{deployment}")

    with pytest.raises(NodeError, match="that sparkdeploy did not make"):
        up(host, make_spec(), tmp_path / "crashes")

    assert _lives(host, foreign_container)


def test_a_second_replacement_waits_until_the_first_is_finished(
    host: DockerHost, make_spec: SpecMaker, deployment: str, tmp_path: Path
) -> None:
    port = free_port()
    up(host, make_spec(port=port), tmp_path / "crashes")
    begin(host, make_spec(port=port), deployment, crashes_dir=tmp_path / "crashes")

    with pytest.raises(NodeError, match="half replaced"):
        begin(host, make_spec(port=port), deployment, crashes_dir=tmp_path / "crashes")


def test_a_new_container_that_may_still_start_is_left_alone(
    host: DockerHost, make_spec: SpecMaker, deployment: str, tmp_path: Path
) -> None:
    up(host, make_spec(), tmp_path / "crashes")
    slow = make_spec(never_healthy=True)
    slow = dataclasses.replace(slow, labels={**slow.labels, labels.STARTUP_TIMEOUT: "600"})
    begin(host, slow, deployment, crashes_dir=tmp_path / "crashes")
    assert recovered(host, deployment, tmp_path / "crashes").action == "waiting"
    assert len(containers_of(host, deployment)) == 2


def _lives(host: DockerHost, container_id: str) -> bool:
    fact = host.find_container(container_id)
    return fact is not None and fact.is_running
