"""Two users of one machine and of its Docker Engine: each is told what is the other's."""

from __future__ import annotations

import pytest

from sparkdeploy.deploy import removal, request
from sparkdeploy.deploy.serving import read_key
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.monitor import status as operating
from sparkdeploy.monitor.status_row import status_lines
from sparkdeploy.node.facts import own_name
from sparkdeploy.recipe.load import Library
from sparkdeploy.settings import load_settings
from tests.fakes.containers import FakeContainers, container
from tests.fakes.machines import build, reached_alone
from tests.unit.plain import plain_lines

OWN = own_name()
WHOSE = [("anna", True), (OWN, False), ("", False)]


@pytest.mark.parametrize(("user", "is_said"), WHOSE)
def test_status_and_down_say_whose_a_deployment_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], user: str, is_said: bool
) -> None:
    engine = FakeContainers.of(container("sparkdeploy-main", "exited", user=user))
    reached_alone(monkeypatch, engine)
    lines = "\n".join(plain_lines(status_lines(operating.current_rows())))
    removed = removal.down("main")
    assert removed == ("sparkdeploy-main",)
    assert ("  deployed by anna" in lines) == is_said
    assert ("deployed by" in lines) == is_said
    assert capsys.readouterr().err == ("warning: main was deployed by anna\n" if is_said else "")


@pytest.mark.parametrize(("user", "is_said"), WHOSE)
def test_whoever_replaces_anothers_deployment_is_asked_with_its_user(
    monkeypatch: pytest.MonkeyPatch, shipped: Library, user: str, is_said: bool
) -> None:
    asked: list[str] = []
    lab = build(monkeypatch, shipped, 1)
    lab.engines[0].facts["old"] = container("sparkdeploy-main", user=user)

    def refuse(question: str) -> bool:
        asked.append(question)
        return False

    lab.consent = refuse
    with pytest.raises(SparkdeployError, match="was not replaced"):
        lab.up()
    whose = " of anna" if is_said else ""
    assert asked == [
        f"deployment main{whose} is running and will be replaced (settings or image changed). "
        "Go on?"
    ]


def test_a_key_that_is_another_users_names_who_can_read_it() -> None:
    fact = container("sparkdeploy-main", exposure="public", port="8000", user="anna")
    with pytest.raises(NodeError, match="cannot be read") as caught:
        read_key(fact, load_settings())
    assert caught.value.hint == "run this as anna"


@pytest.mark.parametrize("exposure", ["public", "loopback"])
@pytest.mark.parametrize(("user", "is_anothers"), WHOSE)
def test_a_public_deployment_of_another_user_is_not_switched_to_another_key(
    monkeypatch: pytest.MonkeyPatch, user: str, is_anothers: bool, exposure: str
) -> None:
    marks = {"port": "8123", "served_name": "old", "exposure": exposure}
    engine = FakeContainers.of(container("sparkdeploy-main", user=user, **marks))
    monkeypatch.setattr(request, "connect", lambda _settings: engine)
    if not (is_anothers and exposure == "public"):
        assert request.served_at("main", load_settings()).port == 8123
        return
    with pytest.raises(NodeError, match="main is public and anna deployed it") as caught:
        request.served_at("main", load_settings())
    assert caught.value.hint is not None
    assert "have anna switch it" in caught.value.hint
    assert "up RECIPE --name main --public" in caught.value.hint
