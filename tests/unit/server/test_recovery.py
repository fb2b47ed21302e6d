"""An old container that was told to stop when a command was killed or interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.recovery import recover
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.node.container import ContainerFact, ContainerSpec, is_ours, refuse_no_name
from tests.fakes.containers import FakeContainers, container
from tests.launching import begin, launch_on

SPEC = ContainerSpec(
    "sparkdeploy-main", "i", (), (), {}, (), "1:1", gpus="none", tmpfs={}, shm_size_bytes=0
)


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (container("sparkdeploy-main-replaced"), "half replaced"),
        (replace(container("sparkdeploy-main"), labels={}), "that sparkdeploy did not make"),
    ],
)
def test_what_is_half_replaced_or_not_ours_is_not_replaced(
    tmp_path: Path, there: ContainerFact, words: str
) -> None:
    engine = FakeContainers.of(there)
    with pytest.raises(NodeError, match=words):
        begin(engine.host, SPEC, "main", crashes_dir=tmp_path / "crashes")
    assert engine.facts == {there.container_id: there}


@pytest.mark.parametrize(("code", "folders"), [(1, 1), (143, 0)])
def test_what_died_leaves_evidence_before_another_takes_its_place(
    tmp_path: Path, code: int, folders: int
) -> None:
    ended = replace(container("sparkdeploy-main", "exited"), exit_code=code)
    engine, crashes = FakeContainers.of(ended), tmp_path / "crashes"
    begin(engine.host, SPEC, "main", crashes_dir=crashes)
    assert len(list(crashes.glob("main-*"))) == folders
    assert ("sparkdeploy-main" in engine.facts) is (folders == 0)


class Strict(FakeContainers):
    """A name is of one container only, as in Docker."""

    def rename(self, key: str, name: str) -> None:
        if self.find_container(name) is not None:
            raise NodeError(f"the name {name} is in use")
        super().rename(key, name)


def test_what_another_command_has_kept_meanwhile_takes_no_number(tmp_path: Path) -> None:
    engine, kept = Strict.of(container("sparkdeploy-main")), "sparkdeploy-main-kept-1"
    launch = begin(engine.host, SPEC, "main", crashes_dir=tmp_path / "crashes")
    engine.facts[kept] = container(kept, "exited")
    launch.commit()
    names = {fact.name for fact in engine.facts.values()}
    assert names == {"sparkdeploy-main", "sparkdeploy-main-kept-2"}


class Interrupted(FakeContainers):
    """The first stop is interrupted after the signal has been sent."""

    def stop(self, key: str, *, timeout_s: int = 30) -> None:
        if not self.stopped:
            self.stopped.append(key)
            raise KeyboardInterrupt
        super().stop(key, timeout_s=timeout_s)


def test_one_that_may_be_stopping_is_stopped_and_started_anew(tmp_path: Path) -> None:
    engine = FakeContainers.of(container("sparkdeploy-main-replaced"))
    launch = launch_on(engine.host, "main", tmp_path / "crashes")
    done = recover(launch, find_deployment(engine.host, "main"))
    assert done.action == "reverted"
    assert engine.stopped == ["sparkdeploy-main-replaced"]
    assert engine.states == {"sparkdeploy-main-replaced/sparkdeploy-main": "running"}


def test_an_interrupted_stop_is_done_again_before_the_start(tmp_path: Path) -> None:
    engine = Interrupted.of(container("sparkdeploy-main"))
    with pytest.raises(KeyboardInterrupt):
        begin(engine.host, SPEC, "main", crashes_dir=tmp_path / "crashes")
    assert engine.stopped == ["sparkdeploy-main"] * 2
    assert engine.states == {"sparkdeploy-main/sparkdeploy-main": "running"}


@pytest.mark.parametrize(
    ("name", "deployment", "ours"),
    [
        *((f"main{end}", "main", True) for end in ("", "-replaced", "-kept-1", "-kept-20")),
        *(
            (f"main{end}", "main", False)
            for end in ("2", "-kept-0", "-kept-x", "-replaced-replaced")
        ),
        *((name, name, False) for name in ("main-replaced", "a-kept-1", "Main", "../x", "")),
    ],
)
def test_a_container_is_ours_by_its_name_and_its_labels(
    name: str, deployment: str, ours: bool
) -> None:
    marks = {labels.KIND: "container", labels.DEPLOYMENT: deployment}
    assert is_ours(f"sparkdeploy-{name}", marks) is ours
    assert not is_ours(name, marks)
    assert not is_ours(f"sparkdeploy-{name}", {**marks, labels.KIND: "image"})
    if name == deployment and not ours:
        with pytest.raises(UsageError, match="is no deployment name"):
            refuse_no_name(name)
