"""The INT4 head's kernel: two codes a byte, as they lie, to the tensor cores by way of registers.

A byte holds the codes of inputs k and k + 64 of a group of 128 (`pack_halves`), so that
the low halves of 64 neighbours are one factor and their high halves another: nothing moves between
threads. Codes become exact integers from -8 to 7. A group's sum gets its scale in FP32.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from sparkdeploy_vllm.head.int8_kernel import (
    Matrix,
    _constants,
    _grid,
    _store_logits,
    _tile_origin,
)
from sparkdeploy_vllm.head.tiles import HeadTile
from sparkdeploy_vllm.weights.conversion import INT4_GROUP

HALF = tl.constexpr(64)
"""Bytes of a group, and inputs of one of its halves."""
# A code n below the exponent of 2^7 (BF16) or 2^10 (FP16) is that power plus n; less the power and
# 8 it is the code's value. Four instructions less for two weights than by way of integers.
_TO_16_BITS = """{{
    .reg .b32 low, high, one, zero;
    and.b32 low, $4, 0x0f0f0f0f;
    shr.u32 high, $4, 4;
    and.b32 high, high, 0x0f0f0f0f;
    mov.b32 one, {one};
    mov.b32 zero, {zero};
    prmt.b32 $0, low, {power}, 0x4140;
    prmt.b32 $1, low, {power}, 0x4342;
    prmt.b32 $2, high, {power}, 0x4140;
    prmt.b32 $3, high, {power}, 0x4342;
    fma.rn.{kind} $0, $0, one, zero;
    fma.rn.{kind} $1, $1, one, zero;
    fma.rn.{kind} $2, $2, one, zero;
    fma.rn.{kind} $3, $3, one, zero;
}}"""
_TO_BF16 = tl.constexpr(
    _TO_16_BITS.format(kind="bf16x2", power="0x43434343", one="0x3f803f80", zero="0xc308c308")
)
_TO_FP16 = tl.constexpr(
    _TO_16_BITS.format(kind="f16x2", power="0x64646464", one="0x3c003c00", zero="0xe408e408")
)


def launch_packed(tile: HeadTile, x: torch.Tensor, matrix: Matrix, logits: torch.Tensor) -> None:
    """Fill `logits` [M, V]: `x` [M, K], packed uint8 [V, K / 2], 16-bit scales [K / 128, V]."""
    packed, scales, bias = matrix
    if x.stride(1) != 1:
        x = x.contiguous()
    if x.shape[1] % tile.hidden:
        tile = replace(tile, hidden=INT4_GROUP)
    _packed[_grid(tile, logits)](
        x,
        x.stride(0),
        packed,
        scales,
        bias,
        logits,
        *logits.shape,
        **_constants(tile, hidden=x.shape[1]),
    )


@triton.jit(do_not_specialize=["rows"])
def _packed(  # noqa: ANN202, PLR0913, PLR0917
    x, x_stride, packed, scales, bias, logits, rows, vocab,  # noqa: ANN001
    HIDDEN: tl.constexpr, ROWS: tl.constexpr, BLOCK_VOCAB: tl.constexpr,  # noqa: N803
    BLOCK_HIDDEN: tl.constexpr, STAGES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    first_row, first_word = _tile_origin(rows, ROWS, BLOCK_VOCAB)
    row = first_row + tl.arange(0, ROWS)
    word = first_word + tl.arange(0, BLOCK_VOCAB)
    k = tl.arange(0, HALF)
    inside = tl.minimum(word, vocab - 1).to(tl.int64)
    bytes_at = packed + inside[:, None] * (HIDDEN // 2) + k[None, :]
    inputs_at = x + row.to(tl.int64)[:, None] * x_stride + k[None, :]
    # Neighbours in memory, as their words are.
    scales_at = scales + word
    is_word, is_row = word < vocab, (row < rows)[:, None]
    scale = tl.load(scales_at, mask=is_word, other=0.0)
    sums = tl.zeros((BLOCK_VOCAB, ROWS), tl.float32)
    for step in tl.range(0, HIDDEN, BLOCK_HIDDEN, num_stages=STAGES):
        for part in tl.static_range(0, BLOCK_HIDDEN, 2 * HALF):
            pairs = tl.load(bytes_at + part // 2, eviction_policy="evict_first")
            first = tl.load(inputs_at + part, mask=is_row, other=0.0)
            second = tl.load(inputs_at + part + HALF, mask=is_row, other=0.0)
            # 16 bits a thread are too few for a copy to shared memory; so they are asked for early.
            scales_at += vocab
            is_ahead = step + part + 2 * HALF < HIDDEN
            ahead = tl.load(scales_at, mask=is_word & is_ahead, other=0.0)
            low, high = _values(pairs, first.dtype)
            sums += _sums_of_group(low, high, first, second) * scale.to(tl.float32)[:, None]
            scale = ahead
        bytes_at += BLOCK_HIDDEN // 2
        inputs_at += BLOCK_HIDDEN
    _store_logits(sums, None, bias, logits, rows, vocab, row, word)


@triton.jit
def _values(pairs, dtype: tl.constexpr):  # noqa: ANN001, ANN202
    # The values of the low and of the high codes of bytes.
    if dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            _TO_BF16, "=r,=r,=r,=r,r", [pairs], (tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    else:
        return tl.inline_asm_elementwise(
            _TO_FP16, "=r,=r,=r,=r,r", [pairs], (tl.float16, tl.float16), is_pure=True, pack=4
        )


@triton.jit
def _sums_of_group(low, high, first, second):  # noqa: ANN001, ANN202
    # FP32 [vocabulary, rows]. The scale's product uses it at once, so the tensor cores are done.
    return tl.dot(high, tl.trans(second), tl.dot(low, tl.trans(first)))
