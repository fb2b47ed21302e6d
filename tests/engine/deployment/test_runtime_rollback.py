"""Earlier containers that are kept, and the way back to them, in real Docker."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.recovery import abandon, recover_here
from sparkdeploy.deploy.replace import TakenAwayError
from sparkdeploy.server.health import ContainerDiedError, Readiness, wait_until_answering
from tests.engine.conftest import DEADLINE_S, SpecMaker, free_port, model_at, start_serving, until
from tests.engine.stand_in.replacing import put_in_place
from tests.launching import begin, begin_return, wait_and_settle

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.node.container import ContainerFact, ContainerSpec
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

    def spec(self, text: str, *, keep: int, **options: object) -> ContainerSpec:
        made = self.make_spec(port=self.port, text=text, **options)
        return dataclasses.replace(made, labels={**made.labels, labels.KEEP: str(keep)})

    def up(self, text: str, *, keep: int, **options: object) -> None:
        put_in_place(
            self.host,
            self.spec(text, keep=keep, **options),
            crashes_dir=self.crashes_dir,
            wait=self.wait,
        )

    def wait(self, container_id: str) -> Readiness:
        with model_at(self.port) as model:
            return wait_until_answering(self.host, container_id, model, deadline_s=DEADLINE_S)

    def back(self) -> None:
        begun = begin_return(self.host, self.kept()[0], crashes_dir=self.crashes_dir)
        wait_and_settle(begun, wait=self.wait, changing=nullcontext)

    def kept(self) -> tuple[ContainerFact, ...]:
        found = find_deployment(self.host, self.name)
        assert found is not None
        return found.kept

    def text(self) -> str:
        with model_at(self.port) as model:
            until(model.is_healthy)
            return model.complete("x", 1).text

    def running(self) -> int:
        found = find_deployment(self.host, self.name)
        return sum(fact.is_running for fact in found.containers) if found else 0


@pytest.fixture
def place(host: DockerHost, make_spec: SpecMaker, deployment: str, tmp_path: Path) -> Place:
    return Place(host, make_spec, deployment, free_port(), tmp_path)


def test_as_many_are_kept_as_were_asked_for_and_none_of_them_runs(place: Place) -> None:
    for number in range(4):
        place.up(f"v{number}", keep=2)

    assert [fact.name.rpartition("-")[2] for fact in place.kept()] == ["3", "2"]
    assert (place.text(), place.running()) == ("v3", 1)
    place.up("v4", keep=0)
    assert place.kept() == ()


def test_rollback_goes_back_and_a_second_one_forward_again(place: Place) -> None:
    place.up("old", keep=1)
    place.up("new", keep=1)

    place.back()
    assert (place.text(), place.running(), len(place.kept())) == ("old", 1, 1)
    place.back()
    assert (place.text(), place.running(), len(place.kept())) == ("new", 1, 1)


def test_a_return_whose_command_is_gone_is_told_from_an_upgrade(place: Place) -> None:
    place.up("old", keep=1)
    place.up("new", keep=1)
    begin_return(place.host, place.kept()[0], crashes_dir=place.crashes_dir)
    # A first process that has no handler yet would be stopped after its deadline only.
    assert place.text() == "old"

    abandon(place.host, place.name, crashes_dir=place.crashes_dir, reason="test")

    assert (place.text(), place.running(), len(place.kept())) == ("new", 1, 1)


def test_what_finishes_a_replacement_keeps_the_old_one_too(place: Place) -> None:
    place.up("old", keep=1)
    begin(place.host, place.spec("new", keep=1), place.name, crashes_dir=place.crashes_dir)
    assert place.text() == "new"

    done = recover_here(
        place.host,
        place.name,
        crashes_dir=place.crashes_dir,
        is_answering=lambda _: True,
    )

    assert (done.action, place.running(), len(place.kept())) == ("finished", 1, 1)


def test_a_kept_one_comes_back_after_the_current_one_has_died(place: Place) -> None:
    place.up("old", keep=1)
    place.up("new", keep=1, die_after_s=1.5)
    until(lambda: place.running() == 0)

    place.back()

    assert (place.text(), place.running()) == ("old", 1)


def test_an_answer_of_a_container_that_was_replaced_meanwhile_does_not_count(
    place: Place,
) -> None:
    begun = begin(
        place.host, place.spec("first", keep=0), place.name, crashes_dir=place.crashes_dir
    )

    def replaced(_: str) -> None:
        place.host.remove(begun.head.container_id)
        start_serving(place.host, place.spec("second", keep=0))

    with pytest.raises(TakenAwayError):
        wait_and_settle(begun, wait=replaced, changing=nullcontext)

    assert (place.text(), place.running()) == ("second", 1)


def test_a_new_one_that_dies_is_not_kept(place: Place) -> None:
    place.up("old", keep=3)

    with pytest.raises(ContainerDiedError):
        place.up("new", keep=3, never_healthy=True, die_after_s=0.3)

    assert (place.text(), place.running(), place.kept()) == ("old", 1, ())
