"""Replacing a deployment in real Docker: success, failure, interruption, a CLI that is killed."""

import json
from pathlib import Path

import pytest

from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.launch import Rank
from sparkdeploy.deploy.recovery import abandon
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
from tests.launching import launch_on

pytestmark = pytest.mark.docker


def up(host: DockerHost, spec: ContainerSpec, crashes_dir: Path) -> Readiness:
    def wait(container_id: str) -> Readiness:
        with model_at(port_of(spec)) as model:
            return wait_until_answering(host, container_id, model, deadline_s=DEADLINE_S)

    return put_in_place(
        host, spec, crashes_dir=crashes_dir, wait=wait, details={"plan": {"recipe": "stand-in"}}
    )


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


def test_a_return_whose_command_is_gone_is_told_from_an_upgrade(
    host: DockerHost, make_spec: SpecMaker, deployment: str, tmp_path: Path
) -> None:
    port, crashes = free_port(), tmp_path / "crashes"
    for text in ("old", "new"):
        up(host, make_spec(port=port, text=text), crashes)
    found = find_deployment(host, deployment)
    assert found is not None
    launch = launch_on(host, deployment, crashes)
    launch.start([Rank(launch.nodes.here, found.kept[0])])
    # A first process that has no handler yet would be stopped after its deadline only.
    assert text_served_at(port) == "old"
    abandon(launch_on(host, deployment, crashes), reason="test")
    assert text_served_at(port) == "new"
    name = f"sparkdeploy-{deployment}"
    left = sorted(containers_of(host, deployment))
    assert left == [(name, "running"), (f"{name}-kept-1", "exited")]
