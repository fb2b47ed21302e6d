"""What of a model a recipe may not ask for: cache formats its attention lacks, and long contexts.

Formats are read in the model files of vLLM 0.25.1 and 0.33.0, v1/attention/backends/
turboquant_attn.py and platforms/cuda.py: on NVIDIA's GPUs windows, sinks, caps and slopes are taken
as arguments and left out of the sum; the plugin stops an engine that hands them over, but only
once it loads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sparkdeploy.checkpoint.architecture import TEXT_PARTS, config_sizes
from sparkdeploy.checkpoint.layers import Architecture, Attention, Latent
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe import flags
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.image_pins import is_unknown
from sparkdeploy.recipe.releases import parse_version
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
UNSCALED_YARN: Final = (0, 32, 0)
"""The first release that was seen not to multiply a context by YaRN's factor; 0.25.1 does."""
ALLOW_LONG: Final = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
MOST_SCALING: Final = 4096
MOST_TOKENS: Final = 1 << 32
ROPE_KEYS: Final = frozenset({"rope_parameters", "rope_scaling"})
MAMBA_KEYS: Final = frozenset(
    {"ssm_state_size", "mamba_d_state", "state_size", "hybrid_override_pattern"}
)
CONTEXT_KEYS: Final = (
    *("max_position_embeddings", "n_positions", "max_target_positions", "seq_length"),
    *("max_seq_len", "max_sequence_length", "max_seq_length", "seq_len"),
)
"""Where configurations say how long a request may be; vLLM takes the smallest, but for
`model_max_length`, which goes before all."""


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
    model_type = str(text.get("model_type", config.get("model_type")))
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


def _positive(value: object, most: int = MOST_TOKENS) -> float:
    """Return a number that a model may have; 0 for anything else that config.json holds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 < value <= most else 0.0


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


def context_of(config: Mapping[str, Any], *, scales_yarn: bool = True) -> int:
    """Return the longest context in tokens that vLLM takes of a config.json; 0 for unknown.

    As vLLM's `_get_and_verify_max_len` counts: kinds of RoPE scaling multiply the stated context,
    but for those of UNSCALED, which are in it already. With `scales_yarn` YaRN multiplies the one
    before it, as in releases before 0.32; later ones take the stated one as it is.
    """
    try:
        sizes = config_sizes(config)
    except CheckpointError:
        return 0
    text = sizes.text
    stated = _context(text.get("model_max_length")) or min(
        filter(None, (_context(text.get(key)) for key in CONTEXT_KEYS)), default=0
    )
    # Gemma's stated context is scaled already.
    if "gemma3" in str(sizes.model_type):
        return stated
    own, factor = stated, 1.0
    for rope in _ropes(text.get("rope_parameters") or text.get("rope_scaling")):
        kind, given = rope.get("rope_type", rope.get("type")), rope.get("factor")
        given = _positive(given, MOST_SCALING)
        if not isinstance(kind, str) or kind in UNSCALED or not given:
            continue
        if "yarn" not in kind:
            factor = given
        elif scales_yarn:
            factor, before = given, _context(rope.get("original_max_position_embeddings"))
            own = before or own
    return int(factor * own)


def _ropes(stated: object) -> Iterator[Mapping[str, Any]]:
    """Yield the scaling of a model: one, or one for each kind of layers."""
    if not isinstance(stated, dict):
        return
    nested = [it for it in stated.values() if isinstance(it, dict)]
    yield from nested if nested and not {"rope_type", "type"} & stated.keys() else [stated]


def _context(value: object) -> int:
    return value if type(value) is int and 0 < value <= MOST_TOKENS else 0


def overridden(serve: Serve, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the language model's part of a config.json as `serve.hf_overrides` change it."""
    text, overrides = dict(config_sizes(config).text), serve.hf_overrides or {}
    inner = next((it for it in map(overrides.get, TEXT_PARTS) if isinstance(it, dict)), {})
    changed = overrides | inner
    if changed.keys() & ROPE_KEYS:
        text = {key: it for key, it in text.items() if key not in ROPE_KEYS}
    return text | {key: it for key, it in changed.items() if key not in TEXT_PARTS}


def beyond_context(
    serve: Serve, config: Mapping[str, Any], *, scales_yarn: bool = True
) -> str | None:
    """Say by how much a recipe's context is beyond the model's own; None where vLLM takes it.

    RoPE scaling of `serve.hf_overrides` counts, and VLLM_ALLOW_LONG_MAX_MODEL_LEN allows any. Of a
    model with Mamba layers nothing is said: owners serve Nemotron-H at four times what its
    config.json states.
    """
    wanted, is_allowed = serve.context_limit, _is_on(serve.env.get(ALLOW_LONG))
    if wanted is None or is_allowed:
        return None
    try:
        text = overridden(serve, config)
    except CheckpointError:
        return None
    if text.keys() & MAMBA_KEYS:
        return None
    own = context_of(text, scales_yarn=scales_yarn)
    if flags.switch_of(serve.extra_args, "--disable-sliding-window"):
        own = min(own, _context(text.get("sliding_window")) or own)
    if not own or wanted <= own:
        return None
    return f"a context of {own:,} tokens, and serve.max_model_len is {wanted:,}"


def needs_stated_context(serve: Serve, config: Mapping[str, Any], engine: Engine) -> bool:
    """Say whether only releases before 0.32 take a recipe's context, by the factor of YaRN."""
    is_later = not is_unknown(engine) and parse_version(engine.vllm) >= UNSCALED_YARN
    return is_later and beyond_context(serve, config, scales_yarn=False) is not None


def _is_on(value: str | None) -> bool:
    """Return whether vLLM takes a variable's value for yes."""
    return (value or "").strip().lower() in {"1", "true"}
