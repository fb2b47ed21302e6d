"""What a model's attention needs beside keys and values, and what of it TurboQuant cannot serve.

Read in the model files of vLLM 0.25.1 and 0.33.0, v1/attention/backends/turboquant_attn.py and
platforms/cuda.py: on NVIDIA's GPUs windows, sinks, caps and slopes are taken as arguments and left
out of the sum; the plugin stops an engine that hands them over, but only once it loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sparkdeploy.checkpoint.architecture import (
    UnknownArchitectureError,
    architecture_of,
    config_sizes,
)
from sparkdeploy.checkpoint.layers import Attention, Latent
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe import flags

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.checkpoint.layers import Mixer
    from sparkdeploy.recipe.schema import Serve

FIX: Final = "--set serve.kv_cache_dtype=auto, or fp8"
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


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What a model needs of every attention back end, by its config.json; 0 and empty for nothing.

    Of a model type whose layers are not known, only what its configuration says in so many words.
    """

    window_tokens: int = 0
    """Of sliding windows; the widest where layers differ."""
    chunk_tokens: int = 0
    has_sinks: bool = False
    logit_cap: float = 0.0
    """Attention logits are bent to stay below it."""
    has_slopes: bool = False
    is_latent: bool = False
    """MLA: one compressed vector a token instead of keys and values."""
    key_widths: tuple[int, ...] = ()
    """Elements of a head's key, each width once."""


NO_NEEDS: Final = AttentionNeeds()


def needs_of(config: Mapping[str, Any]) -> AttentionNeeds:
    """Return what a config.json needs; nothing for numbers that are the download's to refuse."""
    try:
        text = config_sizes(config).text
        mixers = _mixers(config)
    except CheckpointError:
        return NO_NEEDS
    model_type = text.get("model_type", config.get("model_type"))
    attention = [it for it in mixers or () if isinstance(it, Attention)]
    windows = [it.window or 0 for it in attention]
    is_latent = any(isinstance(it, Latent) for it in mixers or ())
    return AttentionNeeds(
        window_tokens=max(windows, default=0) if mixers is not None else _stated_window(text),
        chunk_tokens=max((it.chunk or 0 for it in attention), default=0),
        has_sinks=model_type in _WITH_SINKS or any(text.get(key) is True for key in _SINK_SWITCHES),
        logit_cap=_positive(text.get("attn_logit_softcapping")),
        has_slopes=model_type in _WITH_SLOPES or text.get("alibi") is True,
        is_latent=is_latent or (mixers is None and _positive(text.get("kv_lora_rank")) > 0),
        key_widths=tuple(sorted({it.key_width for it in attention})),
    )


def _mixers(config: Mapping[str, Any]) -> list[Mixer] | None:
    """Return those of all layers, drafting ones too; None of a model type that is not known."""
    try:
        found = architecture_of(config)
    except UnknownArchitectureError:
        return None
    return [mixer for layer in (*found.layers, *found.draft_layers) for mixer in layer.mixers]


def _stated_window(text: Mapping[str, Any]) -> int:
    """Return the window of a model type that is not known, where its layers are said to have it."""
    kinds, window = text.get("layer_types"), int(_positive(text.get("sliding_window")))
    if isinstance(kinds, list):
        return window if "sliding_attention" in kinds else 0
    return 0 if text.get("use_sliding_window") is False else window


def _positive(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else 0.0  # type: ignore[operator,arg-type]


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
    if ignored := " and ".join(_ignored(needs)):
        wrong = "which vLLM's TurboQuant ignores: the text would be wrong"
        yield f"{ignored}, {wrong} {cause}"
    if fatal := " and ".join(_fatal(name, needs)):
        yield f"{fatal}, with which vLLM's TurboQuant does not start {cause}"


def _ignored(needs: AttentionNeeds) -> Iterator[str]:
    if needs.window_tokens:
        yield f"sliding windows of {needs.window_tokens:,} tokens"
    if needs.has_sinks:
        yield "attention sinks"
    if needs.logit_cap:
        yield f"attention logits capped at {needs.logit_cap:g} (attn_logit_softcapping)"
    if needs.has_slopes:
        yield "ALiBi slopes"


def _fatal(kv_cache_dtype: str, needs: AttentionNeeds) -> Iterator[str]:
    if needs.chunk_tokens:
        yield f"local chunks of {needs.chunk_tokens:,} tokens"
    if needs.is_latent:
        yield "latent attention (MLA)"
    uneven = [width for width in needs.key_widths if width & (width - 1)]
    if uneven and kv_cache_dtype not in _UNROTATED:
        widths = " and ".join(map(str, uneven))
        yield f"heads of {widths} elements (its rotation takes powers of two)"
