"""A model's config.json as its owner publishes it: shipped facts stand in where a hub is silent."""

from __future__ import annotations

import pytest

from sparkdeploy.checkpoint import published
from sparkdeploy.checkpoint.published import Remote, published_config
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.schema import Weights
from sparkdeploy.settings import load_settings

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
