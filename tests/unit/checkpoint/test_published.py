"""A model's config.json as its owner publishes it: shipped facts stand in where a hub is silent."""

from __future__ import annotations

import queue
import threading

import pytest

from sparkdeploy.checkpoint import published, threads
from sparkdeploy.checkpoint.published import Remote, published_config
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.schema import Weights
from sparkdeploy.settings import load_settings
from sparkdeploy.terminal.step import Step

QUOTED, LACKING = "cyankiwi/GLM-4.7-Flash-AWQ-4bit", "google/gemma-4-26B-A4B-it"


def test_the_hubs_own_word_goes_before_what_others_quote(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Remote(QUOTED, config={"model_type": "of the hub"})
    monkeypatch.setattr(published, "ask_in_time", lambda *_, **__: told)
    found = published_config(Weights(repo=QUOTED), load_settings())
    assert (found.config["model_type"], found.origin) == ("of the hub", "from the hub")


def test_what_others_quote_counts_where_the_hub_is_silent() -> None:
    found = published_config(Weights(repo=QUOTED), load_settings())
    assert found.config["model_type"] == "glm4_moe_lite"


def test_a_configuration_that_lacks_a_part_is_none() -> None:
    with pytest.raises(CheckpointError, match="what is shipped of it lacks vision_config"):
        published_config(Weights(repo=LACKING), load_settings())


def test_a_hub_that_takes_its_time_is_waited_for_in_a_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threads, "QUIET_S", 0.0)
    monkeypatch.setattr(threads, "_LOOK_EVERY_S", 0.01)
    said = queue.SimpleQueue[str]()
    monkeypatch.setattr(Step, "say", lambda _step, text: said.put(text))
    answer = threads.run_within(60, lambda: said.get(timeout=20), "asking the hub about lab/twin")
    assert answer == "no answer yet, given up after 1m00s"
    assert capsys.readouterr().err.startswith("asking the hub about lab/twin: done")


def test_who_waits_too_long_for_a_hub_is_told_by_its_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threads, "QUIET_S", 0.01)
    with pytest.raises(TimeoutError):
        threads.run_within(0.05, threading.Event().wait, "asking the hub about lab/twin")
    assert capsys.readouterr().err.startswith("asking the hub about lab/twin: failed")
