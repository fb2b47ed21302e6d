"""What a command that died left half done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.recovery import recover
from tests.fakes.containers import FakeContainers, container
from tests.launching import launch_on

if TYPE_CHECKING:
    from pathlib import Path


def test_an_old_container_that_may_be_stopping_is_stopped_and_started_anew(tmp_path: Path) -> None:
    engine = FakeContainers.of(container("sparkdeploy-main-replaced"))
    launch = launch_on(engine.host, "main", tmp_path / "crashes")
    done = recover(launch, find_deployment(engine.host, "main"))
    assert done.action == "reverted"
    assert engine.stopped == ["sparkdeploy-main-replaced"]
    assert engine.states == {"sparkdeploy-main-replaced/sparkdeploy-main": "running"}
