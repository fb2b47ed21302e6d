"""What a model's attention asks beside keys and values: windows, sinks, caps, slopes.

Read in the model files of vLLM 0.25.1 and 0.33.0: what their layers hand to the attention back end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sparkdeploy.checkpoint.family.architecture import UnknownArchitectureError, architecture_of
from sparkdeploy.checkpoint.family.config_sizes import config_sizes
from sparkdeploy.checkpoint.family.layers import Attention, Latent
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.checkpoint.family.layers import Architecture

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
class AttentionDemands:
    """What a model asks of every attention back end, by its config.json; empty where it asks none.

    Of a model type whose layers are not known, only what its configuration says in so many words.
    """

    window_tokens: int = 0
    """Of sliding windows; 0 for none, the widest where layers differ."""
    chunk_tokens: int = 0
    """Of local chunks; 0 for none."""
    has_sinks: bool = False
    logit_cap: float = 0.0
    """Attention logits are bent to stay below it; 0 for none."""
    has_slopes: bool = False
    """ALiBi."""
    is_latent: bool = False
    """MLA: one compressed vector a token instead of keys and values."""
    key_widths: tuple[int, ...] = ()
    """Elements of a head's key, each width once."""


NO_DEMANDS: Final = AttentionDemands()


def attention_demands(config: Mapping[str, Any]) -> AttentionDemands:
    """Return what a config.json asks; nothing for numbers that are the download's to refuse."""
    try:
        text = config_sizes(config).text
        layers = _known_layers(config)
    except CheckpointError:
        return NO_DEMANDS
    model_type = text.get("model_type", config.get("model_type"))
    named = model_type if isinstance(model_type, str) else ""
    window, chunk = _reach(layers) if layers is not None else (_stated_window(text), 0)
    return AttentionDemands(
        window_tokens=window,
        chunk_tokens=chunk,
        has_sinks=named in _WITH_SINKS or any(text.get(key) is True for key in _SINK_SWITCHES),
        logit_cap=_positive(text.get("attn_logit_softcapping")),
        has_slopes=named in _WITH_SLOPES or text.get("alibi") is True,
        is_latent=_is_latent(layers, text),
        key_widths=_key_widths(layers),
    )


def _known_layers(config: Mapping[str, Any]) -> Architecture | None:
    try:
        return architecture_of(config)
    except UnknownArchitectureError:
        return None


def _reach(layers: Architecture) -> tuple[int, int]:
    """Return the widest window and the widest chunk of the layers, 0 for none."""
    attention = _attention(layers)
    windows = (mixer.window or 0 for mixer in attention)
    return max(windows, default=0), max((mixer.chunk or 0 for mixer in attention), default=0)


def _key_widths(layers: Architecture | None) -> tuple[int, ...]:
    if layers is None:
        return ()
    return tuple(sorted({mixer.key_width for mixer in _attention(layers)}))


def _attention(layers: Architecture) -> list[Attention]:
    every = (*layers.layers, *layers.draft_layers)
    return [it for layer in every for it in layer.mixers if isinstance(it, Attention)]


def _is_latent(layers: Architecture | None, text: Mapping[str, Any]) -> bool:
    if layers is None:
        return _positive(text.get("kv_lora_rank")) > 0
    return any(isinstance(mixer, Latent) for layer in layers.layers for mixer in layer.mixers)


def _stated_window(text: Mapping[str, Any]) -> int:
    """Return the window of a model type that is not known, where its layers are said to have it."""
    kinds, window = text.get("layer_types"), int(_positive(text.get("sliding_window")))
    if isinstance(kinds, list):
        return window if "sliding_attention" in kinds else 0
    return 0 if text.get("use_sliding_window") is False else window


def _positive(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else 0.0  # type: ignore[operator,arg-type]
