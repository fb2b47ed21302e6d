"""A shared expert of FP8 in two launches, for up to eight rows: a step of one or two requests.

Weights are e4m3 in blocks of 128 x 128 and are read once, whatever the rows; activations stay at
16 bits, where vLLM's own kernels round them to FP8 first. Sums are FP32. Every launch computes
eight rows, so that a row's result does not depend on how many others there are.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkdeploy_vllm.weights.conversion import FP8_BLOCK

OUTPUTS = 16
"""Of one program: the fewest rows that the left operand of a tensor core has. In the first launch
they are eight of the gate and the same eight of up, so that twice as many programs share them."""


class Fp8Matrix(NamedTuple):
    weight: Tensor
    """e4m3 [N, K]."""
    scales: Tensor
    """FP32 [N / 128, K / 128]."""


def shared_expert(x: Tensor, gate_up: Fp8Matrix, down: Fp8Matrix, own_gate: Tensor) -> Tensor:
    """sigmoid(x g) * (silu(x G) * (x U)) D for `x` [M, K] of up to eight rows; [M, K] of its dtype.

    `gate_up` is [2 I, K], G before U; `down` is [K, I]; `own_gate` is [1, K], of 16 bits.
    """
    rows, hidden = x.shape
    inner = down.weight.shape[1]
    x = x.contiguous()
    middle = x.new_empty((rows, inner))
    shares = torch.empty(rows, dtype=torch.float32, device=x.device)
    out = torch.empty_like(x)
    sizes = {"HIDDEN": hidden, "INNER": inner}
    _gate_up[(2 * inner // OUTPUTS + 1,)](
        x, *gate_up, own_gate, middle, shares, rows, **sizes, **_at_once(hidden)
    )
    _down[(hidden // OUTPUTS,)](middle, *down, shares, out, rows, **sizes, **_at_once(inner))
    return out


def _at_once(inputs: int) -> dict[str, int]:
    """Each warp takes its own block of 128 inputs, so that many loads are under way."""
    blocks = next(count for count in (8, 4, 2, 1) if inputs // FP8_BLOCK % count == 0)
    return {"BLOCKS": blocks, "num_warps": blocks}


@triton.jit
def _products(weight, inputs, scales, sums):  # noqa: ANN001, ANN202
    """[BLOCKS, 16, 8]: each block's product by its scales, [BLOCKS, 16], or [BLOCKS, 1] for all."""
    exact = weight.to(inputs.dtype)
    return sums + tl.dot(exact, tl.trans(inputs, (0, 2, 1))) * scales[:, :, None]


@triton.jit(do_not_specialize=["rows"])
def _gate_up(  # noqa: ANN202, PLR0913, PLR0917
    x, weight, scales, own_gate, middle, shares, rows,  # noqa: ANN001
    HIDDEN: tl.constexpr, INNER: tl.constexpr, BLOCKS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.arange(0, 8)
    block = tl.arange(0, BLOCKS)
    k = block[:, None, None] * 128 + tl.arange(0, 128)[None, None, :]
    is_row = (row < rows)[None, :, None]
    inputs_at = x + row[None, :, None] * HIDDEN + k
    first = tl.program_id(0) * 8
    if first == INNER:
        # The last program: how much of this expert each row takes.
        taken = tl.zeros((BLOCKS, 8, 128), tl.float32)
        for start in range(0, HIDDEN, BLOCKS * 128):
            inputs = tl.load(inputs_at + start, mask=is_row, other=0.0).to(tl.float32)
            taken += inputs * tl.load(own_gate + start + k).to(tl.float32)
        share = tl.sigmoid(tl.sum(tl.sum(taken, 2), 0))
        tl.store(shares + row, share, mask=row < rows)
    else:
        # Rows 0 to 7 of the product are the gate's, 8 to 15 up's.
        lane = tl.arange(0, 16)
        output = lane // 8 * INNER + first + lane % 8
        weight_at = weight + output[None, :, None] * HIDDEN + k
        scale_at = scales + (output // 128 * (HIDDEN // 128))[None, :] + block[:, None]
        sums = tl.zeros((BLOCKS, 16, 8), tl.float32)
        for start in range(0, HIDDEN, BLOCKS * 128):
            tile = tl.load(weight_at + start, eviction_policy="evict_first")
            inputs = tl.load(inputs_at + start, mask=is_row, other=0.0)
            sums = _products(tile, inputs, tl.load(scale_at + start // 128), sums)
        halves = tl.reshape(tl.sum(sums, 0), (2, 8, 8))
        is_gate = (tl.arange(0, 2) == 0)[:, None, None]
        whole_gate = tl.sum(tl.where(is_gate, halves, 0.0), 0)
        whole_up = tl.sum(tl.where(is_gate, 0.0, halves), 0)
        active = whole_gate * tl.sigmoid(whole_gate) * whole_up
        target = middle + row[None, :] * INNER + (first + tl.arange(0, 8))[:, None]
        tl.store(target, active.to(middle.dtype.element_ty), mask=(row < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _down(  # noqa: ANN202, PLR0913, PLR0917
    middle, weight, scales, shares, out, rows,  # noqa: ANN001
    HIDDEN: tl.constexpr, INNER: tl.constexpr, BLOCKS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.arange(0, 8)
    block = tl.arange(0, BLOCKS)
    k = block[:, None, None] * 128 + tl.arange(0, 128)[None, None, :]
    first = tl.program_id(0) * 16
    output = first + tl.arange(0, 16)
    weight_at = weight + output[None, :, None] * INNER + k
    inputs_at = middle + row[None, :, None] * INNER + k
    scale_at = scales + (first // 128) * (INNER // 128) + block[:, None]
    sums = tl.zeros((BLOCKS, 16, 8), tl.float32)
    for start in range(0, INNER, BLOCKS * 128):
        tile = tl.load(weight_at + start, eviction_policy="evict_first")
        inputs = tl.load(inputs_at + start, mask=(row < rows)[None, :, None], other=0.0)
        sums = _products(tile, inputs, tl.load(scale_at + start // 128), sums)
    share = tl.load(shares + row, mask=row < rows, other=0.0)
    target = out + row[None, :] * HIDDEN + output[:, None]
    result = tl.sum(sums, 0) * share[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=(row < rows)[None, :])
