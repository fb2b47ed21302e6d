"""Ctrl-C during a rehearsal: nothing of it stays, also with --keep and with a second Ctrl-C."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.deploy.request import Request
from sparkdeploy.errors import NodeError
from sparkdeploy.plan.container import Deployment
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.rehearsal import rehearse
from sparkdeploy.rehearsal.miniature import Miniature
from sparkdeploy.settings import load_settings
from tests.fakes.containers import container
from tests.fakes.machines import Lab, build, interrupts

KEEP_OR_NOT = [True, False]


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, shipped: Library, tmp_path: Path) -> Lab:
    """One machine where the text without speculation was recorded earlier."""
    monkeypatch.setattr(rehearse, "_reference_file", lambda *_: tmp_path / "reference.json")
    monkeypatch.setattr(rehearse, "_texts_without_speculation", lambda *_, **__: ({}, "recorded"))
    small = Miniature(load_recipe(shipped, "v2"), ())
    monkeypatch.setattr(rehearse, "_miniature", lambda *_: small)
    lab = build(monkeypatch, shipped, 1)
    monkeypatch.setattr(rehearse, "connect", lambda _settings: lab.engines[0])
    return lab


def rehearsed(lab: Lab, *, keep: bool, says: bool = True) -> None:
    lab.steps = 0
    request = Request("v2", (), Deployment(rehearse.DEPLOYMENT))
    rehearse.rehearse(
        request, load_settings(), fresh=False, keep=keep, consent=lambda _question: says
    )


def test_one_that_runs_is_ended_with_consent_alone(lab: Lab) -> None:
    running = container("sparkdeploy-rehearsal", deployment="rehearsal")
    lab.engines[0].facts = {running.container_id: running}
    with pytest.raises(NodeError, match="rehearsal is running and stays"):
        rehearsed(lab, keep=False, says=False)
    assert lab.engines[0].facts == {running.container_id: running}


@pytest.mark.parametrize("keep", KEEP_OR_NOT)
@pytest.mark.parametrize("second", [None, 3, 4])
def test_an_interrupted_rehearsal_is_taken_down(
    lab: Lab, capsys: pytest.CaptureFixture[str], keep: bool, second: int | None
) -> None:
    # It is made and started; then it is stopped and removed, which a second Ctrl-C does not stop.
    lab.wait = interrupts
    lab.interrupt_at = (second,) if second else ()
    with pytest.raises(KeyboardInterrupt):
        rehearsed(lab, keep=keep)
    assert lab.names() == [[]]
    assert capsys.readouterr().err.endswith("rehearsal is taken down: it was interrupted\n")


@pytest.mark.parametrize("keep", KEEP_OR_NOT)
def test_ctrl_c_while_it_is_asked_leaves_none(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    @contextlib.contextmanager
    def asked(*_: Any, **_options: Any) -> Any:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(rehearse, "ServedModel", asked)
    with pytest.raises(KeyboardInterrupt):
        rehearsed(lab, keep=keep)
    assert lab.names() == [[]]
