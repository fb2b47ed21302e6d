"""What `switch` takes over, and what it says of the silence."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sparkdeploy.deploy import request as deploy_request
from sparkdeploy.deploy.replace import Replacement
from sparkdeploy.deploy.request import Request, at_address, served_at
from sparkdeploy.deploy.serving import ServedDeployment
from sparkdeploy.errors import NodeError
from sparkdeploy.recipe.load import Library
from sparkdeploy.server.phases import NOT_KNOWN, expected_start, save_durations
from sparkdeploy.settings import load_settings
from tests.fakes.containers import FakeContainers, container
from tests.fakes.machines import Lab, build
from tests.launching import launch_on

HERE = ServedDeployment("main", "v2", 8123, ("old", "chat", "default"), Path("key"))


def serving(**more: str) -> FakeContainers:
    marks = {"port": "8123", "served_name": "old", "exposure": "public", **more}
    values = '{"model": {"served_name": ["old", "chat"]}}'
    return FakeContainers.of(container("sparkdeploy-main", recipe_values=values, **marks))


def reached(monkeypatch: pytest.MonkeyPatch, engine: FakeContainers) -> None:
    monkeypatch.setattr(deploy_request, "connect", lambda _settings: engine)


def test_port_key_aliases_and_nodes_are_those_of_what_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached(monkeypatch, serving())
    found = served_at("main", load_settings())
    assert (found.port, found.models, found.nodes) == (8123, ("old", "chat"), ())
    assert found.key_file is not None
    reached(monkeypatch, serving(exposure="loopback", nodes="a,b", rank="0"))
    found = served_at("main", load_settings())
    assert (found.key_file, found.nodes) == (None, ("a", "b"))


def test_nothing_is_switched_where_nothing_is_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    reached(monkeypatch, FakeContainers())
    with pytest.raises(NodeError, match="no deployment named main"):
        served_at("main", load_settings())


def test_the_new_model_keeps_its_names_and_gets_the_aliases() -> None:
    request = at_address(Request("v2"), HERE, load_settings())
    assert request.assignments[0] == "serve.port=8123"
    assert request.assignments[1].startswith('model.served_name=["')
    assert request.assignments[1].endswith('"chat", "default"]')
    assert request.deployment.is_public


@pytest.mark.parametrize(
    "typed", ["serve.port=9000", "serve={port: 9000}", 'model.served_name=["mine"]']
)
def test_what_is_typed_goes_before_what_is_taken_over(typed: str) -> None:
    request = at_address(Request("v2", (typed,)), HERE, load_settings())
    path = typed.partition("=")[0]
    assert [item for item in request.assignments if item.startswith(path)][-1] == typed
    assert len([item for item in request.assignments if item.startswith(path)]) == 1


def test_the_silence_is_that_of_earlier_starts() -> None:
    settings = load_settings()
    pace = f"sparkdeploy/plugin:{'a' * 16} v2"
    save_durations(settings.state_dir, f"{pace} on a CPU", {"weights": 5.0})
    assert expected_start(settings.state_dir, pace) == NOT_KNOWN
    for other, seconds in (("b", 600.0), ("c", 60.0)):
        save_durations(
            settings.state_dir, f"sparkdeploy/guard:{other * 16} v2", {"weights": seconds}
        )
    newest = max((settings.state_dir / "starts").iterdir(), key=lambda path: path.name)
    os.utime(newest, (2e9, 2e9))
    assert "as an earlier start of it here took" in expected_start(settings.state_dir, pace)
    for key in (f"sparkdeploy/plugin:{'d' * 16} other-v2", "no-key v2"):
        save_durations(settings.state_dir, key, {"weights": 5.0})
    assert "1m" in expected_start(settings.state_dir, pace)
    save_durations(settings.state_dir, pace, {"weights": 20.0, "warmup": 10.0})
    assert expected_start(settings.state_dir, pace) == "about 30.0s, as its last start here took"


@pytest.mark.parametrize("count", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_replacement_says_its_downtime_before_and_after(
    count: int,
    monkeypatch: pytest.MonkeyPatch,
    shipped: Library,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lab: Lab = build(monkeypatch, shipped, count)
    assert lab.up("serve.max_num_seqs=1").downtime_s is None
    assert "downtime" not in capsys.readouterr().err
    outcome = lab.up("serve.max_num_seqs=2")
    assert outcome.downtime_s is not None
    assert 0 <= outcome.downtime_s < 5
    assert f"downtime: {NOT_KNOWN}\n" in capsys.readouterr().err


def test_the_downtime_begins_with_the_first_of_several_that_was_stopped(tmp_path: Path) -> None:
    made = launch_on(FakeContainers().host, "main", tmp_path / "crashes")
    made.begun = [cast("Replacement", SimpleNamespace(old_stop_s=at)) for at in (14.0, 10.0, None)]
    assert made.downtime_s is None
    made.answered_s = 20.0
    assert made.downtime_s == 10.0
    made.begun = made.begun[2:]
    assert made.downtime_s is None
