"""What served before a campaign is noted whole, and asked for again as it was."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.bench.campaign import run as stage
from sparkdeploy.bench.campaign import steps
from sparkdeploy.bench.campaign.folder import (
    HAS_SERVED,
    PLAN,
    Before,
    Campaign,
    CampaignPlan,
    PlannedRecipe,
    StepKind,
    campaigns_below,
    unfinished,
)
from sparkdeploy.bench.campaign.run import note_before, restored
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import BenchError, NodeError, RecipeError, SparkdeployError
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.report import values_to_show
from sparkdeploy.settings import load_settings
from tests.fakes.containers import FakeContainers, container
from tests.unit.conftest import REPOSITORY

SECRET = "not-to-be-kept"


def serving(monkeypatch: pytest.MonkeyPatch, *sets: str, recipe: str = "v2", **more: str) -> None:
    """Have a container of the recipe run as `main`."""
    values = resolve(Request(recipe, sets), load_settings()).recipe
    env = [f"{name}={value}" for name, value in {"PATH": "/bin", **values.serve.env}.items()]
    marks = {
        "recipe": values.name,
        "recipe_values": json.dumps(values_to_show(values)),
        "exposure": "public",
        "keep": "3",
        **more,
    }
    engine = FakeContainers.of(container("sparkdeploy-main", **marks))
    play(monkeypatch, engine, {"Config": {"Env": env}})


def play(monkeypatch: pytest.MonkeyPatch, engine: FakeContainers, record: dict[str, Any]) -> None:
    monkeypatch.setattr(engine, "inspect", lambda _id: record, raising=False)
    monkeypatch.setattr(stage, "connect", lambda _settings: engine)


def noted() -> Before:
    before = note_before("main", load_settings())
    assert before is not None
    return before


def again(folder: Path) -> tuple[Resolved, Request]:
    return restored(noted(), "main", folder, load_settings())


def test_it_is_the_recipe_of_its_name_with_what_was_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sets = ("serve.port=8123", f"serve.env.COLOUR={SECRET}", "serve.reasoning_parser=null")
    serving(monkeypatch, *sets)
    resolved, request = again(tmp_path)
    assert resolved.recipe == resolve(Request("v2", sets), load_settings()).recipe
    assert request.recipe == "v2"
    assert request.deployment.is_public
    assert noted().env == {
        **resolve(Request("v2"), load_settings()).recipe.serve.env,
        "COLOUR": SECRET,
    }
    assert SECRET not in json.dumps(noted().values)
    assert not list(tmp_path.glob("*.yaml"))


def test_a_recipe_that_is_another_by_now_comes_back_by_its_values(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "config" / "recipes"
    own.mkdir(parents=True)
    mine = {"schema": 1, "name": "mine", "title": "mine", "extends": "mtp-1"}
    (own / "mine.yaml").write_text(json.dumps({**mine, "serve": {"port": 8200}}))
    serving(monkeypatch, f"serve.env.COLOUR={SECRET}", recipe="mine")
    before = resolve(Request("mine", (f"serve.env.COLOUR={SECRET}",)), load_settings()).recipe
    (own / "mine.yaml").unlink()
    found = again(tmp_path)[0].recipe
    kept = {"extends", "allow_unsafe"}
    assert found.model_dump(exclude=kept) == before.model_dump(exclude=kept)


@pytest.mark.parametrize(
    ("more", "said"),
    [({"nodes": "a,b"}, "several nodes"), ({"recipe_values": "{}"}, "an earlier sparkdeploy")],
)
def test_what_could_not_be_put_back_is_refused(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, str], said: str
) -> None:
    serving(monkeypatch, **more)
    with pytest.raises(NodeError, match=said):
        note_before("main", load_settings())


def test_a_recipe_that_cannot_be_read_again_is_refused_and_no_file_of_it_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "config" / "recipes"
    (own / "engines").mkdir(parents=True)
    engine = (REPOSITORY / "recipes" / "engines" / "cpu-0.32.yaml").read_text()
    (own / "engines" / "lost.yaml").write_text(engine.replace("name: cpu-0.32", "name: lost"))
    serving(monkeypatch, "engine=lost", "serve.attention_backend=null")
    (own / "engines" / "lost.yaml").unlink()
    with pytest.raises(RecipeError, match="mistake"):
        again(tmp_path)
    assert not (tmp_path / stage.FILE).exists()


def begun(state_dir: Path, name: str, before: Before | None) -> Campaign:
    recipe = PlannedRecipe("v2", "v2", "", (*StepKind,))
    plan = CampaignPlan("2026-11-25T20:00:00Z", "main", (recipe,))
    campaign = Campaign(campaigns_below(state_dir) / name, plan)
    campaign.begin(before)
    return campaign


def test_a_campaign_is_read_as_it_was_written_and_a_damaged_one_refused(tmp_path: Path) -> None:
    before = Before("v2", {"name": "v2", "n": [1, None]}, {"A": "b"})
    campaign = begun(tmp_path, "a", before)
    assert unfinished(tmp_path) == campaign
    assert campaign.before == before
    file = campaign.path / PLAN
    text = file.read_text()
    file.write_text(text.replace('"is_quick": false', '"is_quick": 0'))
    with pytest.raises(BenchError, match="is_quick"):
        unfinished(tmp_path)
    file.write_text(re.sub(r'"schema": 1\b', '"schema": 2', text))
    with pytest.raises(BenchError, match="has schema 2"):
        unfinished(tmp_path)


def test_one_that_was_left_asks_again_before_it_replaces_anything_and_two_never_run(
    tmp_path: Path,
) -> None:
    settings = replace(load_settings(), state_dir=tmp_path)
    campaign = begun(tmp_path, "a", None)
    campaign.mark(HAS_SERVED)
    with pytest.raises(SparkdeployError, match="left as it is"):
        stage.run_campaign(None, settings, lambda _question: False)
    with stage.alone(settings), pytest.raises(BenchError, match="is running already"):
        stage.run_campaign(None, settings, lambda _question: True)
    assert unfinished(tmp_path) == campaign


def test_a_tuning_that_fails_is_a_step_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = FakeContainers.of(container("sparkdeploy-main", recipe="v2"))
    engine.exec = lambda *_: (1, "timing\nthe card is busy\n")
    monkeypatch.setattr(steps, "connect", lambda _settings: engine)
    made = steps.Steps(begun(tmp_path, "a", None), load_settings())
    with pytest.raises(BenchError, match="ended with exit code 1: the card is busy"):
        made.take(0, StepKind.TUNE)


def test_the_campaign_that_is_not_over_is_found(tmp_path: Path) -> None:
    assert unfinished(tmp_path) is None
    over = begun(tmp_path, "a", Before("v2", {}, {"COLOUR": SECRET}))
    over.finish()
    assert SECRET not in "".join(path.read_text() for path in over.path.iterdir())
    assert unfinished(tmp_path) is None
    (campaigns_below(tmp_path) / "c").mkdir()  # killed before its first word
    second = begun(tmp_path, "b", None)
    assert unfinished(tmp_path) == second
