"""The longest context of a model, and of a recipe that serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkdeploy.checkpoint.layers import Recurrent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.checkpoint.layers import Architecture
    from sparkdeploy.recipe.schema import Serve

CONTEXT_FIX = (
    "lower serve.max_model_len, or state the RoPE scaling that its author names in "
    "serve.hf_overrides; `--set serve.env.VLLM_ALLOW_LONG_MAX_MODEL_LEN='1'` insists"
)
UNSCALED = frozenset({"default", "su", "longrope", "llama3", "mrope", "proportional"})
"""Kinds of RoPE whose stated context needs no factor."""
MOST_SCALING = 4096
MOST_TOKENS = 1 << 32


def context_of(text: Mapping[str, Any]) -> int:
    """Return the longest context in tokens that vLLM takes of a language model; 0 for unknown.

    As vLLM's `_get_and_verify_max_len` counts: YaRN multiplies the context before it, other kinds
    of RoPE scaling the stated one, and those of UNSCALED are in the stated one already.
    """
    stated = _context(text.get("max_position_embeddings")) or _context(text.get("n_positions"))
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if not isinstance(rope, dict):
        return stated
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
    is_scaled = isinstance(kind, str) and kind not in UNSCALED
    if not is_scaled or not isinstance(factor, int | float) or not 0 < factor <= MOST_SCALING:
        return stated
    before = _context(rope.get("original_max_position_embeddings")) if kind == "yarn" else 0
    return int(factor * (before or stated))


def _context(value: object) -> int:
    return value if type(value) is int and 0 < value <= MOST_TOKENS else 0


def beyond_context(serve: Serve, architecture: Architecture | None) -> str | None:
    """Say by how much a recipe's context is beyond the model's own; None where vLLM takes it.

    RoPE scaling of `serve.hf_overrides` counts, and VLLM_ALLOW_LONG_MAX_MODEL_LEN allows any. Of a
    model with Mamba layers nothing is said: owners serve Nemotron-H at four times what its
    config.json states.
    """
    wanted, is_allowed = serve.context_limit, serve.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN") == "1"
    if architecture is None or wanted is None or is_allowed or _has_mamba(architecture):
        return None
    overrides = serve.hf_overrides or {}
    text = overrides.get("text_config")
    changed = overrides | (text if isinstance(text, dict) else {})
    stated: dict[str, Any] = {"max_position_embeddings": architecture.max_position_embeddings}
    if not changed.keys() & {"rope_parameters", "rope_scaling"}:
        stated["rope_parameters"] = architecture.rope
    own = context_of(stated | changed)
    if not own or wanted <= own:
        return None
    return f"a context of {own:,} tokens, and serve.max_model_len is {wanted:,}"


def _has_mamba(architecture: Architecture) -> bool:
    mixers = (mixer for layer in architecture.layers for mixer in layer.mixers)
    return any(isinstance(it, Recurrent) and it.name.startswith("Mamba") for it in mixers)
