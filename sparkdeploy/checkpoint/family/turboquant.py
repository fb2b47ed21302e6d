"""What TurboQuant cannot serve: what vLLM's back end ignores, and what it does not start with.

Read in vLLM 0.25.1 and 0.33.0 (v1/attention/backends/turboquant_attn.py, platforms/cuda.py). On
NVIDIA's GPUs windows, sinks, caps and slopes are taken as arguments and left out of the sum; the
plugin stops an engine that hands them over, but only once it loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sparkdeploy.recipe import flags

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.checkpoint.family.demands import AttentionDemands
    from sparkdeploy.recipe.schema import Serve

FIX: Final = "--set serve.kv_cache_dtype=auto, or fp8"
_PREFIX: Final = "turboquant"
_UNROTATED: Final = frozenset({"turboquant_k8v4"})
"""Formats whose keys are FP8 as they come: no Hadamard matrix."""
_SKIPS: Final = "--kv-cache-dtype-skip-layers"


@dataclass(frozen=True, slots=True)
class Unserved:
    """What a model asks that a format does not give, and what would come of it; both as words."""

    kv_cache_dtype: str
    what: str
    outcome: str

    def message(self, model: str) -> str:
        cause = f"(serve.kv_cache_dtype: {self.kv_cache_dtype})"
        return f"{model} has {self.what}, {self.outcome} {cause}"


def unserved(serve: Serve, demands: AttentionDemands) -> Iterator[Unserved]:
    """Yield why these settings do not serve a model's attention, at most one for each outcome.

    A recipe that changes the configuration or leaves layers out of the format decides by layer;
    there the plugin looks at each when the engine starts.
    """
    if not serve.kv_cache_dtype.startswith(_PREFIX) or _decides_by_layer(serve):
        return
    ignored, fatal = list(_ignored(demands)), list(_fatal(serve.kv_cache_dtype, demands))
    if ignored:
        yield Unserved(
            serve.kv_cache_dtype,
            " and ".join(ignored),
            "which vLLM's TurboQuant ignores: the text would be wrong",
        )
    if fatal:
        yield Unserved(
            serve.kv_cache_dtype,
            " and ".join(fatal),
            "with which vLLM's TurboQuant does not start",
        )


def _decides_by_layer(serve: Serve) -> bool:
    leaves_out = any(flags.flag_of(argument) == _SKIPS for argument in serve.extra_args)
    return leaves_out or bool(serve.hf_overrides)


def _ignored(demands: AttentionDemands) -> Iterator[str]:
    if demands.window_tokens:
        yield f"sliding windows of {demands.window_tokens:,} tokens"
    if demands.has_sinks:
        yield "attention sinks"
    if demands.logit_cap:
        yield f"attention logits capped at {demands.logit_cap:g} (attn_logit_softcapping)"
    if demands.has_slopes:
        yield "ALiBi slopes"


def _fatal(kv_cache_dtype: str, demands: AttentionDemands) -> Iterator[str]:
    if demands.chunk_tokens:
        yield f"local chunks of {demands.chunk_tokens:,} tokens"
    if demands.is_latent:
        yield "latent attention (MLA)"
    uneven = [width for width in demands.key_widths if width & (width - 1)]
    if uneven and kv_cache_dtype not in _UNROTATED:
        widths = " and ".join(map(str, uneven))
        yield f"heads of {widths} elements (its rotation takes powers of two)"
