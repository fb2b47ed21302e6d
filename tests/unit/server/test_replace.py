"""Replacing a container whose stop is interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy import labels
from sparkdeploy.node.container import ContainerFact, ContainerSpec
from tests.launching import begin

if TYPE_CHECKING:
    from pathlib import Path


SPEC = ContainerSpec(
    name="sparkdeploy-main",
    image="i",
    entrypoint=(),
    command=(),
    env={},
    mounts=(),
    user="1:1",
    gpus="none",
    tmpfs={},
    shm_size_bytes=0,
)


class _Engine:
    """One container; the first stop is interrupted after the signal has been sent."""

    def __init__(self) -> None:
        self.name = "sparkdeploy-main"
        self.is_running = True
        self.stops = 0

    def labelled_containers(self) -> tuple[ContainerFact | None]:
        return (self.find_container(self.name),)

    def find_container(self, reference: str) -> ContainerFact | None:
        if reference not in {self.name, "old"}:
            return None
        ours = {labels.KIND: "container", labels.DEPLOYMENT: "main"}
        state = "running" if self.is_running else "exited"
        return ContainerFact("old", self.name, "sha256:0", state, ours)

    def rename(self, _: str, name: str) -> None:
        self.name = name

    def stop(self, _: str) -> None:
        self.stops += 1
        if self.stops == 1:
            raise KeyboardInterrupt
        self.is_running = False

    def start(self, _: str) -> None:
        assert not self.is_running
        self.is_running = True


def test_an_old_container_that_was_told_to_stop_is_started_anew(tmp_path: Path) -> None:
    engine = _Engine()
    with pytest.raises(KeyboardInterrupt):
        begin(engine, SPEC, "main", crashes_dir=tmp_path / "crashes")  # type: ignore[arg-type]
    assert engine.stops == 2
    assert (engine.name, engine.is_running) == ("sparkdeploy-main", True)
