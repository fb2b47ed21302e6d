"""What the shipped sample gives a draft head whose tokens the user did not count."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy.checkpoint import draft_vocabulary
from sparkdeploy.checkpoint.draft_vocabulary import (
    SAMPLE_NAME,
    DraftVocabulary,
    count_tokens,
    draft_origin,
    ensure_vocabulary,
    sample_inputs,
    sample_texts,
    vocabulary_file,
    write_vocabulary,
)
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.plan.models import LocatedModel, conversion_for, locate_model
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import Settings, load_settings

HEAD = "checkpoint.draft_lm_head={rows: 64}"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(load_settings(), data_dir=tmp_path / "data")


@pytest.fixture
def model(small_twin: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_twin, tmp_path / "model"))


def drafting(shipped: Library, model: Path) -> Recipe:
    return load_recipe(shipped, "v2", (HEAD, f"model.path={model}")).recipe


def kept(settings: Settings) -> list[Path]:
    return sorted(settings.data_dir.rglob("*.json"))


def test_the_first_count_is_kept_and_not_made_again(
    shipped: Library, model: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = drafting(shipped, model)
    made = ensure_vocabulary(recipe, settings, model)
    assert made is not None
    assert (made.texts, made.origin) == ((SAMPLE_NAME,), sample_inputs(model))
    alone = count_tokens(model, sample_texts(), on_progress=lambda _done, _total: None)
    assert made.tokens == alone.tokens
    monkeypatch.delattr(draft_vocabulary, "count_tokens")
    assert ensure_vocabulary(recipe, settings, model) == made


def test_what_the_user_counted_comes_before_the_sample(
    shipped: Library, model: Path, settings: Settings
) -> None:
    recipe = drafting(shipped, model)
    mine = DraftVocabulary(tuple(range(320)), 9, 2, ("mine.txt",))
    write_vocabulary(vocabulary_file(recipe.model, settings), mine)
    assert ensure_vocabulary(recipe, settings, model) == mine
    assert draft_origin(recipe, settings, model) == mine.origin


def test_a_plan_names_the_overlay_before_anything_is_counted(
    shipped: Library, model: Path, settings: Settings
) -> None:
    recipe = drafting(shipped, model)
    located = locate_model(recipe, settings)
    planned = fact(located)
    assert planned.has_draft_vocabulary
    assert planned.overlay is not None
    assert not planned.overlay.is_complete
    assert not kept(settings)
    assert located.source is not None
    draft = ensure_vocabulary(recipe, settings, model)
    conversion = conversion_for(located.source, recipe, settings)
    build_overlay(located.source, conversion, planned.overlay.path, None, draft)
    after = fact(locate_model(recipe, settings)).overlay
    assert after is not None
    assert (after.path, after.is_complete) == (planned.overlay.path, True)


def fact(located: LocatedModel) -> ModelFact:
    assert isinstance(located.fact, ModelFact)
    return located.fact
