"""A context beyond the model's own is refused before anything is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.estimate.limits import UNSCALED, beyond_context, context_of
from sparkdeploy.recipe.serve import Serve
from tests.families import config

if TYPE_CHECKING:
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
