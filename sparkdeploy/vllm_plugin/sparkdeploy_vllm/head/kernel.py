"""An integer LM head on a GPU: one pass over the weights for up to 64 rows, tiles over rows beyond.

The weights are what has to be read, so they are read once, as they lie, and turned into the
activations' type in registers. What INT8 and INT4 differ in is in FORMATS; their kernels have
files of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
import triton

from sparkdeploy_vllm.head.int4_kernel import launch_packed
from sparkdeploy_vllm.head.int8_kernel import Matrix, launch_gathered, launch_streamed
from sparkdeploy_vllm.head.tiles import (
    HeadKey,
    HeadTile,
    Weights,
    kernel_fingerprint,
    shipped_for,
    tile_for,
)
from sparkdeploy_vllm.tuning.tiles import Choice, choose
from sparkdeploy_vllm.weights.conversion import INT4_GROUP

ACTIVATION_DTYPES = (torch.bfloat16, torch.float16)
LOGITS_DTYPE = torch.float32
"""What the sums are, so nothing is rounded. BF16's step at a logit of 20 is 0.125."""


@dataclass(frozen=True, slots=True)
class HeadFormat:
    """How a head's weights lie: FORMATS has one for each dtype that a matrix may have."""

    weights: Weights
    inputs_an_element: int
    """So many of K are one element of the matrix."""
    hidden_step: int
    """The hidden size must be a multiple of it."""


FORMATS = {
    # K of one tensor-core instruction.
    torch.int8: HeadFormat("int8", 1, 16),
    torch.uint8: HeadFormat("int4", 2, INT4_GROUP),
}
LAUNCHES: dict[str, Callable[[HeadTile, torch.Tensor, Matrix, torch.Tensor], None]] = {
    "gathered": launch_gathered,
    "streamed": launch_streamed,
    "packed": launch_packed,
}


def fits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `head_logits` takes these: 16-bit activations and a known matrix on one CUDA GPU."""
    return (
        x.is_cuda
        and x.dtype in ACTIVATION_DTYPES
        and weight.dtype in FORMATS
        and shape_of(weight)[1] % FORMATS[weight.dtype].hidden_step == 0
        and weight.is_contiguous()
    )


def shape_of(weight: torch.Tensor) -> tuple[int, int]:
    return weight.shape[0], weight.shape[1] * FORMATS[weight.dtype].inputs_an_element


def head_logits(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype = LOGITS_DTYPE,
) -> torch.Tensor:
    """Logits [..., V] of `x` [..., K] times a head, plus `bias` [V].

    The head: int8 `weight` [V, K] times FP32 `scales` [V], or INT4 in uint8 [V, K / 2] times 16-bit
    `scales` [K / 128, V]. `x` may be strided; the result is in `out_dtype`, at most rounded once
    from FP32. Safe in CUDA graph capture once `prepare` ran for that
    `out_dtype`: no synchronisation, no tuning, no file. A row's result does not depend on the other
    rows, only on the tile that their number selects.
    """
    rows_in = x.reshape(-1, x.shape[-1])
    tile = tile_for(_tiles_of(weight), rows_in.shape[0])
    logits = head_with_tile(tile, rows_in, (weight, scales, bias), out_dtype)
    return logits.view(*x.shape[:-1], weight.shape[0])


def head_with_tile(
    tile: HeadTile, x: torch.Tensor, matrix: Matrix, out_dtype: torch.dtype
) -> torch.Tensor:
    """Logits [M, V] of `x` [M, K] by this tile; what `head_logits` does with the one it chose."""
    logits = torch.empty((x.shape[0], matrix[0].shape[0]), dtype=out_dtype, device=x.device)
    if logits.numel():
        LAUNCHES[tile.path](tile, x, matrix, logits)
    return logits


def prepare(
    weight: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype,
    folder: Path | None = None,
    *,
    out_dtype: torch.dtype = LOGITS_DTYPE,
) -> Choice[HeadTile] | None:
    """Choose the tiles of a matrix and compile them for activations of `dtype` and logits of
    `out_dtype`; return the choice and what it is from.

    Looks for tuned tiles in `folder` (default: the cache folder). The one place that reads a file:
    call it before CUDA graphs are captured. Tuned tiles that do not run are given up for those that
    ship. None, and nothing done, when `head_logits` does not take the matrix or the `dtype`.
    """
    if not fits(weight.new_empty((1, 1), dtype=dtype), weight):
        return None
    choice = choose(key_of(weight), folder)
    if choice.source == "tuned":
        try:
            return _used(choice, (weight, scales, None), dtype, out_dtype)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with them, those that ship run
            why = f"{choice.origin} is not used: {type(error).__name__}: {error}"
            choice = replace(choice.key.shipped(), ignored=why)
    return _used(choice, (weight, scales, None), dtype, out_dtype)


def key_of(weight: torch.Tensor) -> HeadKey:
    vocab, hidden = shape_of(weight)
    weights = FORMATS[weight.dtype].weights
    return HeadKey(
        card=torch.cuda.get_device_name(weight.device),
        capability=_capability(weight.device.index),
        vocab=vocab,
        hidden=hidden,
        kernel=kernel_fingerprint(weights),
        triton=triton.__version__,
        weights=weights,
    )


_chosen: dict[tuple[torch.dtype, int, int, int], tuple[HeadTile, ...]] = {}
"""By dtype, device, vocabulary and hidden size; what is not here uses the tiles that ship."""


def _tiles_of(weight: torch.Tensor) -> tuple[HeadTile, ...]:
    weights, card = FORMATS[weight.dtype].weights, _capability(weight.device.index)
    return _chosen.get(_place(weight)) or shipped_for(card, weights).tiles


def _used(
    choice: Choice[HeadTile], matrix: Matrix, dtype: torch.dtype, out_dtype: torch.dtype
) -> Choice[HeadTile]:
    """Run every tile once, so that nothing is compiled or loaded during a later graph capture."""
    weight, scales, bias = matrix
    _chosen[_place(weight)] = choice.tiles
    for tile in choice.tiles:
        x = torch.zeros((tile.rows, shape_of(weight)[1]), dtype=dtype, device=weight.device)
        head_logits(x, weight, scales, bias, out_dtype=out_dtype)
    return choice


def _place(weight: torch.Tensor) -> tuple[torch.dtype, int, int, int]:
    return weight.dtype, weight.device.index, *shape_of(weight)


@cache
def _capability(device_index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device_index)
