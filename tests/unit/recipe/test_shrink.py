"""A model and its recipe made small enough for a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from sparkdeploy.checkpoint.architecture import architecture_of
from sparkdeploy.checkpoint.layers import Architecture
from sparkdeploy.checkpoint.published import PublishedConfig
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.recipe.load import Library, load_engine, load_recipe
from sparkdeploy.recipe.schema import Serve
from sparkdeploy.rehearsal.miniature import (
    Miniature,
    drafter_beside,
    make_drafter,
    miniature_of,
    miniature_of_stand_in,
    without_speculation,
)
from sparkdeploy.rehearsal.stand_in import make_stand_in, shrink
from tests.families import config
from tests.unit.estimate.random_configs import LAYER_LISTS, configs


def text_of(found: dict[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = found.get("text_config", found)
    return text


def kinds(model: Architecture) -> set[str]:
    return {type(mixer).__name__ for layer in model.layers for mixer in layer.mixers}


@given(configs())
def test_a_miniature_has_every_kind_of_layer_and_few_of_them(found: dict[str, Any]) -> None:
    model, small = architecture_of(found), architecture_of(shrink(found).config)
    assert kinds(small) == kinds(model)
    assert (small.experts is None) == (model.experts is None)
    assert len(small.layers) <= max(2, len(model.layers))
    assert len(small.layers) <= 16
    assert len(small.draft_layers) == min(1, len(model.draft_layers))


@given(configs())
def test_its_numbers_fit_each_other(found: dict[str, Any]) -> None:
    text = text_of(shrink(found).config)
    layers = text.get("num_hidden_layers")
    for name in LAYER_LISTS:
        if name in text:
            assert len(text[name]) == layers
    heads, kv_heads = text.get("num_attention_heads"), text.get("num_key_value_heads")
    if heads and kv_heads:
        assert heads % kv_heads == 0
    experts = architecture_of(shrink(found).config).experts
    if experts is not None:
        assert experts.chosen <= experts.count <= 8


def published(tmp_path: Path, family: str) -> PublishedConfig:
    folder = tmp_path / "model"
    folder.mkdir()
    return PublishedConfig(config(family), "of the files here", folder)


def test_a_model_s_own_tokenizer_is_served_where_it_is_at_hand(tmp_path: Path) -> None:
    found = published(tmp_path, "llama")
    assert found.folder is not None
    made = make_stand_in(tmp_path / "out", found, "a/b")
    assert not made.has_own_tokenizer
    assert (made.folder / "tokenizer.json").is_file()
    assert any("a stand-in's" in note for note in made.notes)
    (found.folder / "tokenizer.json").write_text("{}")
    (found.folder / "chat_template.jinja").write_text("{{ messages }}")
    made = make_stand_in(tmp_path / "out", found, "a/b")
    assert made.has_own_tokenizer
    assert (made.folder / "chat_template.jinja").read_text() == "{{ messages }}"
    small = json.loads((made.folder / "config.json").read_text())
    assert small["vocab_size"] == config("llama")["vocab_size"]


def test_every_line_of_a_recipe_that_a_cpu_cannot_do_is_listed(
    tmp_path: Path, shipped: Library
) -> None:
    """And what it can is kept: parsers, an FP8 cache, flags of the server itself."""
    recipe = load_recipe(
        shipped,
        "baseline",
        (
            *("model={repo: a/b}", "serve.attention_backend=FLASHINFER"),
            *("serve.kv_cache_dtype=fp8", "serve.quantization=fp8"),
            "serve.tool_call_parser=hermes",
            "serve.speculative={method: eagle3, model: c/d, tokens: 3}",
            "serve.extra_args=[--moe-backend, marlin, --max-logprobs, '5', --kv-sharing-fast]",
        ),
    )
    stand_in = make_stand_in(tmp_path / "out", published(tmp_path, "llama"), "a/b")
    engine = load_engine(shipped, "cpu-0.32")
    small = miniature_of_stand_in(recipe, engine=engine, stand_in=stand_in, port=8123)
    serve = small.resolved.recipe.serve
    assert (serve.tool_call_parser, serve.kv_cache_dtype, serve.load_format) == (
        *("hermes", "fp8"),
        "dummy",
    )
    assert serve.extra_args == ["--max-logprobs", "5"]
    for dropped in ("attention_backend", "quantization", "eagle3", "--moe-backend", "--kv-sharing"):
        assert [note for note in small.dropped if dropped in note], dropped


TWIN = Path("/data/m/twin")


def rehearsed(shipped: Library, recipe: str, *settings: str) -> Miniature:
    engine = load_engine(shipped, "cpu-0.32")
    return miniature_of(load_recipe(shipped, recipe, settings), engine=engine, twin=TWIN, port=8123)


def test_conversion_and_speculation_are_the_recipe_s_own(shipped: Library) -> None:
    own = load_recipe(shipped, "v2").recipe
    small = rehearsed(shipped, "v2").resolved
    assert small.engine.name == small.recipe.engine == "cpu-0.32"
    assert small.recipe.checkpoint == own.checkpoint
    assert small.recipe.serve.speculative == own.serve.speculative
    assert small.recipe.model.path == str(TWIN)
    assert small.recipe.serve.port == 8123


def test_what_only_cuda_has_is_dropped_and_said(shipped: Library) -> None:
    made = rehearsed(
        shipped, "v2", "serve.extra_args=[--seed=1]", "serve.load_format=fastsafetensors"
    )
    serve = made.resolved.recipe.serve
    assert (serve.attention_backend, serve.load_format, serve.extra_args) == (None, None, [])
    assert made.dropped[0] == "engine cuda-0.25 -> cpu-0.32"
    for field in ("attention_backend", "load_format", "max_model_len", "extra_args"):
        assert [note for note in made.dropped if note.startswith(f"serve.{field}=")]


def test_nothing_is_compiled_unless_the_recipe_says_so(shipped: Library) -> None:
    def serve_of(*settings: str) -> Serve:
        return rehearsed(shipped, "v2", *settings).resolved.recipe.serve

    disabled = {"TORCH_COMPILE_DISABLE": "1"}
    assert serve_of().env == disabled
    own = serve_of("serve.env={OMP_NUM_THREADS: '2'}").env
    assert own == {**disabled, "OMP_NUM_THREADS": "2"}
    assert serve_of("serve.enforce_eager=false").env == {}


def test_a_dflash_drafter_becomes_one_made_for_the_twin(shipped: Library) -> None:
    made = rehearsed(shipped, "dflash", "serve.speculative.attention_backend=FLASH_ATTN")
    own = load_recipe(shipped, "dflash").recipe
    drafting = made.resolved.recipe.serve.speculative
    assert drafting is not None
    assert own.serve.speculative is not None
    assert (drafting.method, drafting.tokens) == ("dflash", own.serve.speculative.tokens)
    assert drafting.model == str(drafter_beside(TWIN))
    assert "attention_backend" not in drafting.further
    (drafter,) = made.resolved.recipe.companions
    assert (drafter.repo, drafter.path) == (None, drafting.model)
    assert [note for note in made.dropped if "-> a drafter made for the twin" in note]
    assert made.resolved.recipe.checkpoint == own.checkpoint


@pytest.mark.parametrize(("recipe", "is_made"), [("dflash", True), ("v2", False)])
def test_a_drafter_is_made_where_the_recipe_drafts_with_one(
    shipped: Library, tmp_path: Path, recipe: str, is_made: bool
) -> None:
    make_drafter(load_recipe(shipped, recipe), tmp_path / "twin", TinyShape(), seed=1)
    assert (drafter_beside(tmp_path / "twin") / "config.json").is_file() is is_made


def test_the_text_to_compare_with_differs_in_speculation_alone(shipped: Library) -> None:
    small = rehearsed(shipped, "v2").resolved
    plain = without_speculation(small).recipe
    assert plain.serve.speculative is None
    speculative = small.recipe.serve.speculative
    serve = plain.serve.model_copy(update={"speculative": speculative})
    assert plain.model_copy(update={"serve": serve}) == small.recipe
