"""A context beyond the model's own is refused before anything is downloaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.checkpoint.contents import Described
from sparkdeploy.estimate.limits import UNSCALED, beyond_context, context_of, needs_of, unserved
from sparkdeploy.plan.models import layers_of
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.recipe.serve import Serve
from tests.fakes.plans import drafter_fact, observed, plan
from tests.families import config
from tests.unit.estimate.shipped import MODELS
from tests.unit.program import Run

OWN = 4096


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        (None, OWN),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
        ({"type": "yarn", "factor": 2}, 2 * OWN),
        ({"rope_type": "linear", "factor": 2.0}, 2 * OWN),
        *(({"rope_type": kind, "factor": 8.0}, OWN) for kind in sorted(UNSCALED)),
        ({"full_attention": {"rope_type": "linear", "factor": 2.0}}, 2 * OWN),
        ({"rope_type": "dynamic", "factor": 1.5}, 6144),
        ({"type": "yarn", "factor": True}, OWN),
        ({"rope_type": "yarn"}, OWN),
    ],
)
def test_the_models_own_context_counts_its_scaling(rope: Any, tokens: int) -> None:
    for key in ("rope_parameters", "rope_scaling"):
        config = {"max_position_embeddings": OWN, key: rope}
        assert context_of(config) == context_of({"text_config": config}) == tokens


def test_what_vllm_reads_first_goes_before_the_rest() -> None:
    config = {"max_position_embeddings": OWN, "seq_length": 2048}
    assert context_of(config) == 2048
    assert context_of(config | {"model_max_length": 8192}) == 8192
    scaled = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert context_of({"model_type": "gemma3_text"} | config | scaled) == 2048
    assert context_of({"text_config": 5}) == context_of({}) == 0


anything = st.none() | st.integers() | st.floats() | st.text() | st.just(10**400)


@given(anything, anything, anything, anything)
def test_no_scaling_of_a_stranger_breaks_it(
    stated: Any, kind: Any, factor: Any, before: Any
) -> None:
    rope = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": before}
    for known in (rope, rope | {"rope_type": "yarn"}, stated):
        found = context_of({"max_position_embeddings": stated, "rope_scaling": known})
        assert type(found) is int
        assert found >= 0


@pytest.mark.parametrize(
    ("serve", "is_beyond"),
    [
        ({"max_model_len": OWN}, False),
        ({"max_model_len": OWN + 1}, True),
        ({"max_model_len": "auto"}, False),
        ({}, False),
        ({"max_model_len": 8192, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}, False),
        ({"max_model_len": 8192, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "True"}}, False),
        ({"max_model_len": 8192, "env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0"}}, True),
        ({"max_model_len": 1025, "extra_args": ["--disable_sliding_window"]}, True),
        ({"max_model_len": 8192, "hf_overrides": {"max_position_embeddings": 8192}}, False),
        (
            {
                "max_model_len": 8192,
                "hf_overrides": {"text_config": {"rope_scaling": {"type": "yarn", "factor": 2}}},
            },
            False,
        ),
        (
            {
                "max_model_len": 8193,
                "hf_overrides": {"rope_parameters": {"rope_type": "linear", "factor": 2}},
            },
            True,
        ),
    ],
)
def test_a_recipe_is_held_to_it(serve: dict[str, Any], is_beyond: bool) -> None:
    model = config("llama") | {"max_position_embeddings": OWN, "sliding_window": 1024}
    assert (beyond_context(Serve(**serve), model) is not None) == is_beyond
    assert beyond_context(Serve(**serve), {}) is None


def test_nothing_is_said_of_a_model_with_mamba_layers() -> None:
    model = config("nemotron-h") | {"max_position_embeddings": OWN}
    assert beyond_context(Serve(max_model_len=4 * OWN), model) is None


@pytest.mark.parametrize("words", [("--hardware", "spark"), ()])
def test_plan_names_the_models_own_context(run: Run, words: tuple[str, ...]) -> None:
    done = run("plan", "v2", "--max-len", "600000", *words)
    assert done.returncode == 4
    said = done.stdout + done.stderr
    assert "has a context of 262,144 tokens, and serve.max_model_len is 600,000" in said


SIZES = {
    "hidden_size": 1024,
    "vocab_size": 32000,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2


def refusals(config: dict[str, Any], cache: str = "turboquant_4bit_nc", **serve: Any) -> list[str]:
    settings = Serve(kv_cache_dtype=cache, **serve)
    return list(unserved(settings, needs_of(config, layers_of(config)[0])))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding windows of 4,096 tokens,"),
        ({"model_type": "gemma3_text", "sliding_window": 512}, "sliding windows of 512 tokens,"),
        (
            {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True},
            "sliding windows of 4,096 tokens,",
        ),
        (
            {"model_type": "gpt_oss", "sliding_window": 128, "layer_types": ALTERNATING},
            "sliding windows of 128 tokens and attention sinks,",
        ),
        ({"model_type": "granite", "attention_sinks": True}, "attention sinks,"),
        (
            {"model_type": "gemma2", "sliding_window": 4096, "attn_logit_softcapping": 50.0},
            "capped at 50 (attn_logit_softcapping)",
        ),
        ({"model_type": "bloom"}, "ALiBi slopes,"),
        ({"model_type": "falcon", "alibi": True}, "ALiBi slopes,"),
        (
            {"model_type": "somebodys", "sliding_window": 64, "layer_types": ALTERNATING},
            "sliding windows of 64 tokens,",
        ),
    ],
)
def test_what_turboquant_would_ignore_is_refused(config: dict[str, Any], words: str) -> None:
    (said,) = refusals(SIZES | config)
    assert words in said
    assert "which vLLM's TurboQuant ignores: the text would be wrong" in said


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "somebodys", "kv_lora_rank": 512}, "latent attention (MLA)"),
        ({"model_type": "phi3", "head_dim": 96}, "heads of 96 elements"),
        (
            {"model_type": "llama4_text", "attention_chunk_size": 8192, "no_rope_layers": [1] * 4},
            "local chunks of 8,192 tokens",
        ),
    ],
)
def test_what_turboquant_does_not_start_with_is_refused(config: dict[str, Any], words: str) -> None:
    (said,) = refusals(SIZES | config)
    assert words in said
    assert "with which vLLM's TurboQuant does not start" in said


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama"},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False},
        {"model_type": "qwen3", "sliding_window": 4096},
        {"model_type": "qwen3_moe", "sliding_window": 4096, "layer_types": ["full_attention"] * 4},
        {"model_type": "gemma2", "attn_logit_softcapping": None},
        {"model_type": "falcon", "alibi": False},
        {"model_type": "somebodys", "sliding_window": 64, "use_sliding_window": False},
        {"model_type": "somebodys", "sliding_window": 64, "layer_types": ["full_attention"] * 4},
        {"model_type": "granite", "attention_sinks": False},
    ],
)
def test_a_window_that_is_not_used_is_none(config: dict[str, Any]) -> None:
    assert refusals(SIZES | config) == []


@pytest.mark.parametrize("size", [float("inf"), float("nan"), 10**400, -1, True, "4096", None])
def test_sizes_that_no_model_has_are_left_to_the_download(size: object) -> None:
    names = ("sliding_window", "kv_lora_rank", "attn_logit_softcapping")
    assert refusals({"model_type": "somebodys"} | dict.fromkeys(names, size)) == []


def test_fp8_keys_are_not_rotated_and_have_any_width() -> None:
    narrow = SIZES | {"model_type": "phi3", "head_dim": 96}
    assert refusals(narrow, "turboquant_k8v4") == []
    assert refusals(narrow, "turboquant_k3v4_nc")
    windows = SIZES | {"model_type": "mistral", "sliding_window": 4096}
    assert refusals(windows, "turboquant_k8v4")


def test_a_recipe_that_decides_by_layer_is_left_to_the_plugin() -> None:
    windows = SIZES | {"model_type": "mistral", "sliding_window": 4096}
    skips = ["--kv-cache-dtype-skip-layers", "sliding_window"]
    assert refusals(windows, extra_args=skips) == []
    assert refusals(windows, hf_overrides={"sliding_window": None}) == []


def test_shipped_recipes_ask_nothing_that_their_cache_lacks(shipped: Library) -> None:
    for name in shipped.recipe_files():
        recipe = load_recipe(shipped, name).recipe
        known = MODELS.get(recipe.model.known_as)
        if known is not None:
            needs = needs_of(known.config, known.architecture)
            assert not list(unserved(recipe.serve, needs)), name


def test_a_drafter_is_looked_at_too(shipped: Library) -> None:
    windows = Described(SIZES | {"model_type": "mistral", "sliding_window": 4096})
    drafter = replace(drafter_fact(), described=windows)
    facts = observed(companions=(drafter,))
    settings = ("serve.attention_backend=null", "serve.kv_cache_dtype=turboquant_4bit_nc")
    said = [it.seen for it in plan(shipped, facts, "dflash", *settings).problems]
    assert [it for it in said if "DFlash has sliding windows of 4,096 tokens" in it]


@pytest.mark.parametrize("beside", [["--hardware", "spark"], []])
def test_the_command_refuses_a_model_with_windows(run: Run, beside: list[str]) -> None:
    settings = ["serve.attention_backend=null", "serve.kv_cache_dtype=turboquant_k8v4"]
    overrides = [word for setting in settings for word in ("--set", setting)]
    done = run("plan", "gpt-oss-120b", *overrides, *beside)
    assert done.returncode == 4, done.stderr
    assert "attention sinks" in done.stdout + done.stderr
    assert "or fp8" in done.stdout + done.stderr
