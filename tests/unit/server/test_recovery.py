"""What a command that died left half done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.recovery import recover_here
from sparkdeploy.node.node import node_behind
from tests.fakes.containers import FakeContainers, container

if TYPE_CHECKING:
    from pathlib import Path


def test_an_old_container_that_may_be_stopping_is_stopped_and_started_anew(tmp_path: Path) -> None:
    engine = FakeContainers.of(container("sparkdeploy-main-replaced"))
    done = recover_here(
        node_behind("here", engine.host),
        find_deployment(engine.host, "main"),
        crashes_dir=tmp_path,
        is_answering=lambda _fact: False,
    )
    assert done.action == "reverted"
    assert engine.stopped == ["sparkdeploy-main-replaced"]
    assert engine.states == {"sparkdeploy-main-replaced/sparkdeploy-main": "running"}
