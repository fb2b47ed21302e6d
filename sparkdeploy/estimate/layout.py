"""The cache layout of a recipe: what its settings and its drafter make of a model's layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.layers import STATE_BYTES
from sparkdeploy.errors import RecipeError
from sparkdeploy.estimate.kv_cache import (
    CPU_BLOCK_TOKENS,
    CUDA_BLOCK_TOKENS,
    CacheLayout,
    CacheSettings,
    UnknownLayoutError,
    cache_layout,
)
from sparkdeploy.recipe.flags import switch_of, value_of
from sparkdeploy.recipe.releases import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.checkpoint.layers import Layer
    from sparkdeploy.estimate.model_facts import ModelFacts
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe

LARGE_BATCH_TOKENS, SMALL_BATCH_TOKENS = 8192, 2048
"""vLLM's server computes so many tokens a step on GPUs from 70 GiB on, and on smaller ones
(engine/arg_utils.py, 0.25.1)."""
PREFIX_CACHING_SINCE = (0, 29, 0)
"""Off for hybrid models in 0.25.1, on in 0.32 (read in code); in between nobody here looked."""


def layout_of(
    resolved: Resolved,
    facts: ModelFacts,
    kv_dtype: str | None = None,
    *,
    batched_tokens: int = LARGE_BATCH_TOKENS,
) -> tuple[CacheLayout | None, str]:
    """Return the KV cache's layout, in the recipe's format or another one.

    Without a layout the text says what is not known; it is empty for a model that keeps no cache.
    Of a pipeline's stages it is that of the largest blocks, which sets their number.
    `batched_tokens` count where the recipe names none.
    """
    architecture = facts.architecture
    if architecture is None:
        return None, facts.unknown
    settings = _settings(resolved, facts, kv_dtype, batched_tokens)
    drafting = tuple(drafting_layers(resolved.recipe, facts))
    try:
        made = [
            cache_layout(architecture, settings, drafter=drafting, stage=stage)
            for stage in stage_ranges(len(architecture.layers), facts.stages)
        ]
    except (UnknownLayoutError, RecipeError) as error:
        return None, str(error)
    known = [layout for layout in made if layout is not None]
    return max(known, key=lambda layout: layout.block_bytes, default=None), ""


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


def drafting_layers(recipe: Recipe, facts: ModelFacts) -> tuple[Layer, ...]:
    """Return the layers that a drafter adds: the model's own for MTP, all of another model."""
    speculative = recipe.serve.speculative
    if speculative is None or facts.architecture is None:
        return ()
    if speculative.is_mtp:
        return facts.architecture.draft_layers
    drafter = facts.drafter.architecture if facts.drafter is not None else None
    return drafter.layers if drafter is not None else ()


def _settings(
    resolved: Resolved, facts: ModelFacts, kv_dtype: str | None, batched_tokens: int
) -> CacheSettings:
    serve, engine = resolved.recipe.serve, resolved.engine
    prefix_caching = serve.enable_prefix_caching
    if prefix_caching is None:
        # A model of states alone has none to share.
        has_attention = facts.architecture is None or facts.architecture.attention_layers > 0
        prefix_caching = has_attention and parse_version(engine.vllm) >= PREFIX_CACHING_SINCE
    block_size = value_of(serve.extra_args, "--block-size") or ""
    # vLLM schedules a step ahead on GPUs, but not for pooling (config/vllm.py, 0.32).
    is_ahead = (
        engine.runs_on != "cpu"
        and serve.runner != "pooling"
        and switch_of(serve.extra_args, "--async-scheduling") is not False
    )
    joins = switch_of(serve.extra_args, "--disable-hybrid-kv-cache-manager")
    return CacheSettings(
        kv_dtype=kv_dtype or serve.kv_cache_dtype,
        vllm=engine.vllm,
        alignment_tokens=CPU_BLOCK_TOKENS if engine.runs_on == "cpu" else CUDA_BLOCK_TOKENS,
        block_tokens=int(block_size) if block_size.isdecimal() else None,
        memory_bytes=state_element_bytes(resolved),
        batched_tokens=serve.max_num_batched_tokens or batched_tokens,
        draft_tokens=serve.speculative.tokens if serve.speculative is not None else 0,
        prefix_caching=prefix_caching,
        joins_windows=joins is True,
        tensor_ranks=facts.tensor_ranks,
        concurrent_steps=facts.stages + int(is_ahead),
    )


def state_element_bytes(resolved: Resolved) -> int | None:
    """Return the bytes of one element of a state's memory; None where the model decides.

    vLLM's CPU builds keep states in FP32 wherever they compute them fast. Its MambaDType has
    `auto`, `float32`, `float16` and `bfloat16` (config/cache.py in 0.25.1 and 0.33.0).
    """
    stated = resolved.recipe.serve.mamba_ssm_cache_dtype
    on_cpu = STATE_BYTES["float32"] if resolved.engine.runs_on == "cpu" else None
    return STATE_BYTES.get(stated, on_cpu) if stated is not None else on_cpu
