"""A configuration in miniature: laws over random configurations of every family."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hypothesis import given

from sparkdeploy.checkpoint.architecture import architecture_of
from sparkdeploy.checkpoint.published import PublishedConfig
from sparkdeploy.recipe.load import Library, load_engine, load_recipe
from sparkdeploy.rehearsal.miniature import miniature_of_stand_in
from sparkdeploy.rehearsal.stand_in import make_stand_in, shrink
from tests.families import config
from tests.unit.estimate.random_configs import LAYER_LISTS, configs

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.checkpoint.layers import Architecture


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
            "model={repo: a/b}",
            "serve.attention_backend=FLASHINFER",
            "serve.kv_cache_dtype=fp8",
            "serve.quantization=fp8",
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
