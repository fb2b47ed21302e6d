"""An LM head of INT4 in groups of 128 inputs in plain torch: conversion, packing and logits.

Two codes share a byte: those of inputs k and k + 64 of a group, the first in the low half. A
kernel then meets 64 neighbours in the low halves of 64 neighbouring bytes, and 64 more in the high
ones: nothing has to be moved between threads. Scales are BF16 or FP16, what the checkpoint's head
is: both reach every size that its values have.
"""

import torch
from torch import Tensor

from sparkdeploy_vllm.weights.conversion import INT4_GROUP
from sparkdeploy_vllm.weights.int4_groups import BITS, ZERO, fit_groups
from sparkdeploy_vllm.weights.reference import (
    head_product,
    logits_in_chunks,
    refuse_damaged_rows,
    row_chunks,
)

HALF = INT4_GROUP // 2
_LOW = 2**BITS - 1


def quantize_head(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise 16-bit [V, K] to packed uint8 [V, K / 2] and scales [K / 128, V], chunk by chunk.

    Scales of neighbouring rows are neighbours: a kernel works on one group of many rows at a time.

    ConversionMismatchError names the first row that holds a NaN or an infinity.
    """
    vocab, hidden = weight.shape
    packed = weight.new_empty((vocab, hidden // 2), dtype=torch.uint8)
    scales = weight.new_empty((hidden // INT4_GROUP, vocab))
    for rows in row_chunks(weight):
        codes, steps = fit_groups(weight[rows])
        scales[:, rows] = steps.t()
        packed[rows] = pack_halves(codes)
    refuse_damaged_rows(torch.isfinite(scales).all(dim=0))
    return packed, scales


def pack_halves(codes: Tensor) -> Tensor:
    """Pack codes uint8 [N, K] below 16 as uint8 [N, K / 2], inputs k and k + 64 to a byte."""
    rows, columns = codes.shape
    halves = codes.view(rows, columns // INT4_GROUP, 2, HALF)
    return (halves[:, :, 0] | halves[:, :, 1] << BITS).view(rows, columns // 2)


def unpack_head(packed: Tensor, scales: Tensor) -> Tensor:
    """Undo `quantize_head`, but for what rounding took: FP32 [N, K]."""
    rows, half = packed.shape
    groups = packed.view(rows, half // HALF, 1, HALF)
    codes = torch.cat([groups & _LOW, groups >> BITS], dim=2).float().sub_(ZERO)
    return codes.mul_(scales.t().float()[:, :, None, None]).view(rows, 2 * half)


def int4_linear(
    x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None, **out: torch.dtype
) -> Tensor:
    """`x` [..., K] times a head of `quantize_head`, plus `bias` [V]: [..., V] as `out_dtype`."""

    def part(rows_in: Tensor, rows: slice) -> Tensor:
        return head_product(rows_in, unpack_head(packed[rows], scales[:, rows]))

    return logits_in_chunks(x, packed, part, bias, **out)


def gather_rows(ids: Tensor, packed: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows `ids` [...] of a head of `quantize_head` as `dtype` [..., K]."""
    flat = ids.reshape(-1)
    rows = unpack_head(packed[flat], scales[:, flat])
    return rows.to(dtype).view(*ids.shape, rows.shape[1])
