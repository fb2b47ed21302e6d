"""What of a model a recipe may not ask for: cache formats its attention lacks, and long contexts.

Formats are read in the model files of vLLM 0.25.1 and 0.33.0, v1/attention/backends/
turboquant_attn.py and platforms/cuda.py: on NVIDIA's GPUs windows, sinks, caps and slopes are taken
as arguments and left out of the sum; the plugin stops an engine that hands them over, but only
once it loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sparkdeploy.checkpoint.architecture import config_sizes
from sparkdeploy.checkpoint.layers import Attention, Latent, Recurrent
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe import flags

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.checkpoint.layers import Architecture
    from sparkdeploy.recipe.schema import Serve

FORMAT_FIX: Final = "--set serve.kv_cache_dtype=auto, or fp8"
CONTEXT_FIX: Final = (
    "lower serve.max_model_len, or state the RoPE scaling that its author names in "
    "serve.hf_overrides; `--set serve.env.VLLM_ALLOW_LONG_MAX_MODEL_LEN='1'` insists"
)
_UNROTATED: Final = frozenset({"turboquant_k8v4"})
"""Formats whose keys are FP8 as they come: no Hadamard matrix."""
_WITH_SINKS: Final = frozenset({"gpt_oss"})
"""Model types whose every layer has a sink for each head; config.json does not say it."""
_SINK_SWITCHES: Final = (
    "add_swa_attention_sink_bias",
    "add_full_attention_sink_bias",
    "swa_attention_sink_enabled",
    "attention_sinks",
    "learnable_sink",
)
"""Keys of models that have sinks where their configuration says so (MiMo, Laguna, Granite)."""
_WITH_SLOPES: Final = frozenset({"bloom", "mpt", "step1"})
"""Model types whose positions are slopes (ALiBi) and nothing else."""
UNSCALED: Final = frozenset({"default", "su", "longrope", "llama3", "mrope", "proportional"})
"""Kinds of RoPE whose stated context needs no factor."""
MOST_SCALING: Final = 4096
MOST_TOKENS: Final = 1 << 32
CONTEXT_KEYS: Final = (
    *("max_position_embeddings", "n_positions", "max_target_positions", "seq_length"),
    *("max_seq_len", "model_max_length"),
)
"""Where configurations say how long a request may be; vLLM takes the smallest."""


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What a model's attention has beside keys and values, by its config.json, in words."""

    ignored: tuple[str, ...] = ()
    """What TurboQuant leaves out: the text would be wrong."""
    fatal: tuple[str, ...] = ()
    """With what TurboQuant does not start."""
    key_widths: tuple[int, ...] = ()
    """Elements of a head's key, each width once."""


NO_NEEDS: Final = AttentionNeeds()


def needs_of(config: Mapping[str, Any], architecture: Architecture | None) -> AttentionNeeds:
    """Return what a config.json and its layers need; nothing for a text part that is no object.

    Where the layers are not known, only what it says in so many words.
    """
    try:
        text = config_sizes(config).text
    except CheckpointError:
        return NO_NEEDS
    layers = (*architecture.layers, *architecture.draft_layers) if architecture is not None else ()
    mixers = [mixer for layer in layers for mixer in layer.mixers]
    attention = [it for it in mixers if isinstance(it, Attention)]
    fatal = []
    if chunk := max((it.chunk or 0 for it in attention), default=0):
        fatal.append(f"local chunks of {chunk:,} tokens")
    is_stated = architecture is None and _positive(text.get("kv_lora_rank")) > 0
    if is_stated or any(isinstance(it, Latent) for it in mixers):
        fatal.append("latent attention (MLA)")
    window = max((it.window or 0 for it in attention), default=0)
    ignored = _ignored(config, text, window if architecture is not None else _stated_window(text))
    widths = tuple(sorted({it.key_width for it in attention}))
    return AttentionNeeds(tuple(ignored), tuple(fatal), widths)


def _ignored(config: Mapping[str, Any], text: Mapping[str, Any], window: int) -> Iterator[str]:
    model_type = text.get("model_type", config.get("model_type"))
    if window:
        yield f"sliding windows of {window:,} tokens"
    if model_type in _WITH_SINKS or any(text.get(key) is True for key in _SINK_SWITCHES):
        yield "attention sinks"
    if cap := _positive(text.get("attn_logit_softcapping")):
        yield f"attention logits capped at {cap:g} (attn_logit_softcapping)"
    if model_type in _WITH_SLOPES or text.get("alibi") is True:
        yield "ALiBi slopes"


def _stated_window(text: Mapping[str, Any]) -> int:
    """Return the window of a model type that is not known, where its layers are said to have it."""
    kinds, window = text.get("layer_types"), int(_positive(text.get("sliding_window")))
    if isinstance(kinds, list):
        return window if "sliding_attention" in kinds else 0
    return 0 if text.get("use_sliding_window") is False else window


def _positive(value: object) -> float:
    """Return a number that a model may have; 0 for anything else that config.json holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 < value <= MOST_TOKENS else 0.0


def unserved(serve: Serve, needs: AttentionNeeds) -> Iterator[str]:
    """Yield what a model has that its cache's format does not serve, at most one for each outcome.

    A recipe that changes the configuration or leaves layers out of the format decides by layer;
    there the plugin looks at each when the engine starts.
    """
    name = serve.kv_cache_dtype
    leaves_out = flags.last_given(serve.extra_args, "--kv-cache-dtype-skip-layers") is not None
    if not name.startswith("turboquant") or leaves_out or serve.hf_overrides:
        return
    cause = f"(serve.kv_cache_dtype: {name})"
    if needs.ignored:
        wrong = "which vLLM's TurboQuant ignores: the text would be wrong"
        yield f"{' and '.join(needs.ignored)}, {wrong} {cause}"
    fatal = [*needs.fatal]
    uneven = [str(width) for width in needs.key_widths if width & (width - 1)]
    if uneven and name not in _UNROTATED:
        widths = " and ".join(uneven)
        fatal.append(f"heads of {widths} elements (its rotation takes powers of two)")
    if fatal:
        yield f"{' and '.join(fatal)}, with which vLLM's TurboQuant does not start {cause}"


def context_of(text: Mapping[str, Any]) -> int:
    """Return the longest context in tokens that vLLM takes of a language model; 0 for unknown.

    As vLLM's `_get_and_verify_max_len` counts: YaRN multiplies the context before it, other kinds
    of RoPE scaling the stated one, and those of UNSCALED are in the stated one already.
    """
    stated = min(filter(None, (_context(text.get(key)) for key in CONTEXT_KEYS)), default=0)
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
    if architecture is None or wanted is None or is_allowed:
        return None
    mixers = (mixer for layer in architecture.layers for mixer in layer.mixers)
    if any(isinstance(it, Recurrent) and it.name.startswith("Mamba") for it in mixers):
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
