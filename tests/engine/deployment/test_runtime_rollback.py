"""Earlier containers that are kept, and the way back to them, in real Docker."""

from __future__ import annotations

import dataclasses
import subprocess
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.deploy.deployments import (
    find_deployment,
    remove_containers,
)
from sparkdeploy.deploy.recovery import abandon
from sparkdeploy.deploy.replace import TakenAwayError
from sparkdeploy.server.health import Readiness, wait_until_answering
from tests.engine.conftest import DEADLINE_S, SpecMaker, free_port, model_at, start_serving, until
from tests.engine.stand_in.replacing import put_in_place
from tests.launching import begin, begin_return, launch_on, wait_and_commit

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.node.container import ContainerSpec, ListedContainer
    from sparkdeploy.node.host import DockerHost

pytestmark = pytest.mark.docker


@dataclasses.dataclass(frozen=True)
class Place:
    """One deployment on one port."""

    host: DockerHost
    make_spec: SpecMaker
    name: str
    port: int
    crashes_dir: Path

    def spec(self, text: str, **options: object) -> ContainerSpec:
        return self.make_spec(port=self.port, text=text, **options)

    def up(self, text: str, **options: object) -> None:
        put_in_place(
            self.host,
            self.spec(text, **options),
            crashes_dir=self.crashes_dir,
            wait=self.wait,
        )

    def wait(self, container_id: str) -> Readiness:
        with model_at(self.port) as model:
            return wait_until_answering(self.host, container_id, model, deadline_s=DEADLINE_S)

    def back(self) -> None:
        begun = begin_return(self.host, self.kept()[0], crashes_dir=self.crashes_dir)
        wait_and_commit(begun, wait=self.wait)

    def kept(self) -> tuple[ListedContainer, ...]:
        found = find_deployment(self.host, self.name)
        assert found is not None
        return found.kept

    def text(self) -> str:
        with model_at(self.port) as model:
            until(model.is_healthy)
            return model.complete("x", 1).text

    def down(self) -> tuple[str, ...]:
        found = find_deployment(self.host, self.name)
        return remove_containers(self.host, found.containers if found else ())

    def kill(self) -> None:
        found = find_deployment(self.host, self.name)
        for fact in found.containers if found else ():
            if fact.is_running:
                subprocess.run(["docker", "kill", fact.container_id], check=True)

    def running(self) -> int:
        found = find_deployment(self.host, self.name)
        return sum(fact.is_running for fact in found.containers) if found else 0


@pytest.fixture
def place(host: DockerHost, make_spec: SpecMaker, deployment: str, tmp_path: Path) -> Place:
    return Place(host, make_spec, deployment, free_port(), tmp_path / "crashes")


def test_rollback_goes_back_and_a_second_one_forward_again(place: Place) -> None:
    place.up("old")
    place.up("new")

    place.back()
    assert (place.text(), place.running(), len(place.kept())) == ("old", 1, 1)
    place.back()
    assert (place.text(), place.running(), len(place.kept())) == ("new", 1, 1)


def test_a_return_whose_command_is_gone_is_told_from_an_upgrade(place: Place) -> None:
    place.up("old")
    place.up("new")
    begin_return(place.host, place.kept()[0], crashes_dir=place.crashes_dir)
    # A first process that has no handler yet would be stopped after its deadline only.
    assert place.text() == "old"

    abandon(launch_on(place.host, place.name, place.crashes_dir), reason="test")

    assert (place.text(), place.running(), len(place.kept())) == ("new", 1, 1)


def test_a_kept_one_comes_back_after_the_current_one_has_died(place: Place) -> None:
    place.up("old")
    place.up("new")
    place.kill()
    until(lambda: place.running() == 0)

    place.back()

    assert (place.text(), place.running()) == ("old", 1)


def test_an_answer_of_a_container_that_was_replaced_meanwhile_does_not_count(
    place: Place,
) -> None:
    begun = begin(place.host, place.spec("first"), place.name, crashes_dir=place.crashes_dir)

    def replaced(_: str) -> None:
        place.host.remove(begun.head.container_id)
        start_serving(place.host, place.spec("second"))

    with pytest.raises(TakenAwayError):
        wait_and_commit(begun, wait=replaced)

    assert (place.text(), place.running()) == ("second", 1)
