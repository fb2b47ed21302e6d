"""INT4 LM head on a GPU: one pass over the packed weights for up to 64 rows, tiles beyond.

As int8_head.py: the weights are read once, as they lie, turned into the activations' type in
registers (exact: integers from -8 to 7) and multiplied on the tensor cores. The sums of a group of
128 inputs get that group's scale in FP32 before they are added to the others.
"""

import torch
import triton
import triton.language as tl

from sparkdeploy_vllm.kernels import int8_head
from sparkdeploy_vllm.kernels.int8_head import (
    ACTIVATION_DTYPES,
    LOGITS_DTYPE,
    Matrix,
    _accumulated,
    _store_logits,
    _tile_origin,
)
from sparkdeploy_vllm.kernels.int8_head_configs import HeadTile, tile_for
from sparkdeploy_vllm.treatment import INT4_GROUP

TILES = (
    HeadTile("gathered", rows=8, vocab=64, hidden=INT4_GROUP, warps=2, stages=4),
    HeadTile("gathered", rows=16, vocab=64, hidden=INT4_GROUP, warps=4, stages=4),
    HeadTile("gathered", rows=32, vocab=64, hidden=INT4_GROUP, warps=4, stages=3),
    HeadTile("gathered", rows=64, vocab=128, hidden=INT4_GROUP, warps=4, stages=3),
)
"""For every card: derived from those of the INT8 head, within 99 KB of shared memory."""


def fits(x: torch.Tensor, packed: torch.Tensor) -> bool:
    """Whether `int4_head` takes these: 16-bit activations and a packed matrix on one CUDA GPU."""
    return (
        x.is_cuda
        and x.dtype in ACTIVATION_DTYPES
        and packed.dtype == torch.uint8
        and x.shape[-1] == 2 * packed.shape[1]
        and x.shape[-1] % INT4_GROUP == 0
        and packed.is_contiguous()
    )


def int4_head(
    x: torch.Tensor,
    packed: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype = LOGITS_DTYPE,
) -> torch.Tensor:
    """Logits [..., V] of `x` [..., K]: times the head that `packed` uint8 [V, K / 2] and 16-bit
    `scales` [V, K / 128] stand for, plus `bias` [V].

    `x` may be strided; the result is in `out_dtype`, at most rounded once from FP32. Safe in CUDA
    graph capture once `compile_tiles` ran for that `out_dtype`. A row's result does not depend on
    the other rows, only on the tile that their number selects.
    """
    rows_in = x.reshape(-1, x.shape[-1])
    tile = tile_for(TILES, rows_in.shape[0])
    logits = head_with_tile(tile, rows_in, (packed, scales, bias), out_dtype)
    return logits.view(*x.shape[:-1], packed.shape[0])


def head_with_tile(
    tile: HeadTile, x: torch.Tensor, matrix: Matrix, out_dtype: torch.dtype
) -> torch.Tensor:
    """Logits [M, V] of `x` [M, K] by this tile; what `int4_head` does with the tile it chose."""
    packed, scales, bias = matrix
    logits = torch.empty((x.shape[0], packed.shape[0]), dtype=out_dtype, device=x.device)
    if x.stride(1) != 1:
        x = x.contiguous()
    if logits.numel():
        _grouped[int8_head._grid(tile, logits)](
            x,
            x.stride(0),
            packed,
            scales,
            bias,
            logits,
            *logits.shape,
            HIDDEN=x.shape[1],
            ROWS=tile.rows,
            BLOCK_VOCAB=tile.vocab,
            GROUP=INT4_GROUP,
            STAGES=tile.stages,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return logits


def compile_tiles(
    packed: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype = LOGITS_DTYPE,
) -> None:
    """Run every tile once, so that nothing is compiled or loaded during a later graph capture.

    Does nothing for activations of a `dtype`, or a matrix, that `int4_head` does not take.
    """
    for tile in TILES:
        x = torch.zeros((tile.rows, 2 * packed.shape[1]), dtype=dtype, device=packed.device)
        if fits(x, packed):
            int4_head(x, packed, scales, out_dtype=out_dtype)


@triton.jit(do_not_specialize=["rows"])
def _grouped(  # noqa: ANN202, PLR0913, PLR0917
    x, x_stride, packed, scales, bias, logits, rows, vocab,  # noqa: ANN001
    HIDDEN: tl.constexpr, ROWS: tl.constexpr, BLOCK_VOCAB: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr, STAGES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    first_row, first_word = _tile_origin(rows, ROWS, BLOCK_VOCAB)
    row = first_row + tl.arange(0, ROWS)
    word = first_word + tl.arange(0, BLOCK_VOCAB)
    k = tl.arange(0, GROUP // 2)
    inside = tl.minimum(word, vocab - 1).to(tl.int64)
    bytes_at = packed + inside[:, None] * (HIDDEN // 2) + k[None, :]
    scales_at = scales + inside * (HIDDEN // GROUP)
    inputs = x + row.to(tl.int64)[:, None] * x_stride + k[None, :]
    is_row = (row < rows)[:, None]
    sums = tl.zeros((BLOCK_VOCAB, ROWS), tl.float32)
    for _ in tl.range(0, HIDDEN, GROUP, num_stages=STAGES):
        pairs = tl.load(bytes_at, eviction_policy="evict_first")
        scale = tl.load(scales_at).to(tl.float32)
        first = tl.load(inputs, mask=is_row, other=0.0)
        second = tl.load(inputs + GROUP // 2, mask=is_row, other=0.0)
        low = ((pairs & 15).to(tl.int8) - 8).to(first.dtype)
        high = ((pairs >> 4).to(tl.int8) - 8).to(first.dtype)
        sums += _of_a_group(low, high, first, second, ROWS, BLOCK_VOCAB) * scale[:, None]
        bytes_at += GROUP // 2
        scales_at += 1
        inputs += GROUP
    _store_logits(sums, None, bias, logits, rows, vocab, row, word)


@triton.jit
def _of_a_group(low, high, first, second, ROWS: tl.constexpr, BLOCK_VOCAB: tl.constexpr):  # noqa: ANN001, ANN202, N803
    # FP32 [BLOCK_VOCAB, ROWS]. The left operand of a tensor core has at least 16 rows.
    if ROWS < 16:
        group = tl.zeros((BLOCK_VOCAB, ROWS), tl.float32)
    else:
        group = tl.zeros((ROWS, BLOCK_VOCAB), tl.float32)
    group = _accumulated(low, first, group, ROWS)
    group = _accumulated(high, second, group, ROWS)
    if ROWS < 16:
        return group
    else:
        return tl.trans(group)
