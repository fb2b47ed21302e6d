"""The cache layout of a recipe: what its settings and its drafter make of a model's layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sparkdeploy.checkpoint.family.layers import STATE_BYTES
from sparkdeploy.errors import RecipeError
from sparkdeploy.estimate.kv_cache import (
    CPU_BLOCK_TOKENS,
    CUDA_BLOCK_TOKENS,
    PREFIX_CACHING_SINCE,
    CacheLayout,
    CacheSettings,
    UnknownLayoutError,
    cache_layout,
)
from sparkdeploy.recipe.features import parse_version
from sparkdeploy.recipe.flags import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.checkpoint.family.layers import Architecture, Layer
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Serve

LARGE_BATCH_TOKENS, SMALL_BATCH_TOKENS = 8192, 2048
"""vLLM's server computes so many tokens a step on GPUs from 70 GiB on, and on smaller ones
(engine/arg_utils.py, 0.25.1)."""
_WITHOUT_GROUPS: Final = "--disable-hybrid-kv-cache-manager"


def layout_of(
    resolved: Resolved,
    facts: ModelFacts,
    kv_dtype: str | None = None,
    *,
    batched_tokens: int = LARGE_BATCH_TOKENS,
) -> tuple[CacheLayout | None, str]:
    """Return the KV cache's layout, in the recipe's format or another one.

    Without a layout the text says what is not known; it is empty for a model that keeps no cache.
    `batched_tokens` count where the recipe names none.
    """
    if facts.architecture is None:
        return None, facts.unknown
    settings = _settings(resolved, facts, kv_dtype, batched_tokens)
    drafting = tuple(drafting_layers(resolved.recipe.serve, facts))
    try:
        return _largest(facts.architecture, settings, drafting, facts.stages), ""
    except (UnknownLayoutError, RecipeError) as error:
        return None, str(error)


def _largest(
    architecture: Architecture, settings: CacheSettings, drafting: Sequence[Layer], stages: int
) -> CacheLayout | None:
    """Return the layout of the stage whose blocks are the largest: it sets their number."""
    made = [
        cache_layout(architecture, settings, drafter=drafting, stage=stage)
        for stage in stage_ranges(len(architecture.layers), stages)
    ]
    known = [layout for layout in made if layout is not None]
    return max(known, key=lambda layout: layout.block_bytes, default=None)


def stage_ranges(layers: int, stages: int) -> Iterator[range]:
    """Yield each stage's layers as vLLM divides them (distributed/utils.py `get_pp_indices`).

    What is left over goes to the stages before the last, one layer each.
    """
    sizes = [layers // stages] * stages
    for at in range(2, layers % stages + 2):
        sizes[-at] += 1
    first = 0
    for size in sizes:
        yield range(first, first + size)
        first += size


def drafting_layers(serve: Serve, facts: ModelFacts) -> Iterator[Layer]:
    """Yield the layers that a drafter adds: the model's own for MTP, all of another model."""
    if serve.speculative is None or facts.architecture is None:
        return
    if serve.speculative.is_mtp:
        yield from facts.architecture.draft_layers
    elif facts.drafter is not None and facts.drafter.architecture is not None:
        yield from facts.drafter.architecture.layers


def _settings(
    resolved: Resolved, facts: ModelFacts, kv_dtype: str | None, batched_tokens: int
) -> CacheSettings:
    serve, engine = resolved.recipe.serve, resolved.engine
    prefix_caching = serve.enable_prefix_caching
    if prefix_caching is None:
        # A model of states alone has none to share.
        has_attention = facts.architecture is None or facts.architecture.attention_layers > 0
        prefix_caching = has_attention and parse_version(engine.vllm) >= PREFIX_CACHING_SINCE
    return CacheSettings(
        kv_dtype=kv_dtype or serve.kv_cache_dtype,
        vllm=engine.vllm,
        alignment_tokens=CPU_BLOCK_TOKENS if engine.runs_on == "cpu" else CUDA_BLOCK_TOKENS,
        block_tokens=_block_size(serve),
        memory_bytes=state_element_bytes(resolved),
        batched_tokens=serve.max_num_batched_tokens or batched_tokens,
        draft_tokens=serve.speculative.tokens if serve.speculative is not None else 0,
        prefix_caching=prefix_caching,
        joins_windows=_WITHOUT_GROUPS in serve.extra_args,
        tensor_ranks=facts.tensor_ranks,
        concurrent_steps=_concurrent_steps(resolved, facts.stages),
    )


def _concurrent_steps(resolved: Resolved, stages: int) -> int:
    """A step for each stage of a pipeline, and one ahead where vLLM schedules asynchronously.

    It does on GPUs, but not for pooling and not with every drafter (config/vllm.py, 0.32).
    """
    serve = resolved.recipe.serve
    is_ahead = (
        resolved.engine.runs_on != "cpu"
        and serve.runner != "pooling"
        and "--no-async-scheduling" not in serve.extra_args
    )
    return stages + int(is_ahead)


def _block_size(serve: Serve) -> int | None:
    said = value_of(serve.extra_args, "--block-size")
    return int(said) if said is not None and said.isdecimal() else None


def state_element_bytes(resolved: Resolved) -> int | None:
    """Return the bytes of one element of a state's memory; None where the model decides.

    vLLM's CPU builds keep states in FP32 wherever they compute them fast. Its MambaDType has
    `auto`, `float32`, `float16` and `bfloat16` (config/cache.py in 0.25.1 and 0.33.0).
    """
    said = resolved.recipe.serve.mamba_ssm_cache_dtype
    on_cpu = STATE_BYTES["float32"] if resolved.engine.runs_on == "cpu" else None
    return STATE_BYTES.get(said, on_cpu) if said is not None else on_cpu
