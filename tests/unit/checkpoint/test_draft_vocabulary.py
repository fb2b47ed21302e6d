"""The tokens that a draft head keeps: counted, ranked, written and read; a sample of ours first."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from sparkdeploy.checkpoint import draft_vocabulary
from sparkdeploy.checkpoint.conversion import Conversion
from sparkdeploy.checkpoint.draft_vocabulary import (
    OVERLAY_FILE,
    SAMPLE_NAME,
    DraftVocabulary,
    count_tokens,
    draft_origin,
    ensure_vocabulary,
    rank_tokens,
    read_vocabulary,
    sample_inputs,
    sample_texts,
    scripts_of,
    vocabulary_file,
    write_vocabulary,
)
from sparkdeploy.checkpoint.overlay import build_overlay, overlay_fingerprint
from sparkdeploy.checkpoint.source import open_folder
from sparkdeploy.checkpoint.tiny_model.tokenizer import TinyTokenizer
from sparkdeploy.errors import CheckpointError
from sparkdeploy.plan.models import LocatedModel, conversion_for, locate_model
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import Settings, load_settings

SMALL = DraftVocabulary(tokens=(4, 0, 3, 1, 2), counted=9, distinct=2, texts=("a.txt",))


@given(
    counts=st.dictionaries(st.integers(0, 40), st.integers(1, 9)),
    special=st.sets(st.integers(0, 40)),
)
def test_every_token_has_one_rank_and_special_ones_come_first(
    counts: dict[int, int], special: set[int]
) -> None:
    ranked = rank_tokens(counts, special=special, vocabulary=41)
    assert sorted(ranked) == list(range(41))
    assert set(ranked[: len(special)]) == special
    seen = [counts.get(token, 0) for token in ranked[len(special) :]]
    assert seen == sorted(seen, reverse=True)


@given(
    counts=st.dictionaries(st.integers(0, 40), st.integers(1, 9)),
    scripts=st.lists(st.sampled_from(("LATIN", "CJK", "")), min_size=41, max_size=41),
)
def test_unseen_tokens_of_one_script_follow_all_seen_ones_by_number(
    counts: dict[int, int], scripts: list[str]
) -> None:
    ranked = rank_tokens(counts, special=(), vocabulary=41, scripts=scripts)
    assert sorted(ranked) == list(range(41))
    seen, unseen = ranked[: len(counts)], ranked[len(counts) :]
    assert set(seen) == set(counts)
    assert [counts[token] for token in seen] == sorted(counts.values(), reverse=True)
    for script in set(scripts):
        alike = [token for token in unseen if scripts[token] == script]
        assert alike == sorted(alike)


def test_a_token_has_the_script_of_its_first_letter() -> None:
    tokens = {"a": 0, "Ġß": 1, "Ñı": 2, "ç": 3, "1": 4, "å¥½": 5, "?": 6}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    found = scripts_of(tokenizer)
    assert found == ["LATIN", "", "CYRILLIC", "", "", "CJK", "", "LATIN"]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "model.json"
    assert read_vocabulary(file) is None
    write_vocabulary(file, SMALL)
    assert read_vocabulary(file) == SMALL
    whole = json.loads(file.read_text())
    for wrong in ({"tokens": "12"}, {"tokens": [1, "a"]}, {"counted": None}, {"texts": [3]}):
        file.write_text(json.dumps({**whole, **wrong}))
        assert read_vocabulary(file) is None
    for text in ("", "[]", "{}", json.dumps(whole)[:-3]):
        file.write_text(text)
        assert read_vocabulary(file) is None


def test_text_is_counted_in_the_model_s_own_tokens(small_twin: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("the the the\n" * 3)
    second.write_text("zebra <|im_end|>")
    told: list[tuple[int, int]] = []
    seen = count_tokens(
        small_twin, [first, second], on_progress=lambda done, total: told.append((done, total))
    )
    assert told[-1] == (52, 52)
    tokenizer = TinyTokenizer(320)
    assert len(seen.tokens) == 320
    assert seen.tokens[0] == tokenizer.token_id("<|im_end|>"), "in the text it is one token"
    assert set(seen.tokens[: len(tokenizer.special_ids)]) == set(tokenizer.special_ids.values())
    assert seen.tokens[len(tokenizer.special_ids)] == ord("e")
    assert seen.distinct < seen.counted < 52


def test_the_overlay_lists_the_tokens_and_follows_their_order(
    small_twin: Path, tmp_path: Path
) -> None:
    source = open_folder(small_twin)
    counted = DraftVocabulary(rank_tokens({9: 5}, special=(), vocabulary=512), 5, 1, ())
    conversion = Conversion(draft_rows=3, draft_origin=counted.origin)
    target = tmp_path / "m" / "ck" / "draft"
    build_overlay(source, conversion, target, draft=counted)
    assert json.loads((target / OVERLAY_FILE).read_text()) == {"tokens": [0, 1, 9]}
    config = json.loads((target / "config.json").read_text())["quantization_config"]
    block = {"rows": 3, "dtype": "int8", "file": OVERLAY_FILE}
    assert config["spark_hybrid"]["draft_lm_head"] == block
    other = Conversion(draft_rows=3, draft_origin=SMALL.origin)
    assert overlay_fingerprint(source, conversion) != overlay_fingerprint(source, other)
    with pytest.raises(CheckpointError, match="changed while"):
        build_overlay(source, other, target, draft=counted)


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
    with (model / "tokenizer.json").open("a") as changed:
        changed.write("\n")
    assert sample_inputs(model) != made.origin


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
