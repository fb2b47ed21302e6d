"""The INT8 head's kernels: exact integers up to 127 on the tensor cores, with FP32 sums.

Weights are read once, as INT8, and turned into the activations' type in registers.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from sparkdeploy_vllm.head.tiles import HeadTile

Matrix = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def launch_gathered(tile: HeadTile, x: torch.Tensor, matrix: Matrix, logits: torch.Tensor) -> None:
    weight, scales, bias = matrix
    if x.stride(1) != 1:
        x = x.contiguous()
    _gathered[_grid(tile, logits)](
        x,
        x.stride(0),
        weight,
        scales,
        bias,
        logits,
        *logits.shape,
        **_constants(tile, hidden=weight.shape[1]),
    )


def launch_streamed(tile: HeadTile, x: torch.Tensor, matrix: Matrix, logits: torch.Tensor) -> None:
    weight, scales, bias = matrix
    x = _in_fragment_order(x)
    _streamed[_grid(tile, logits)](
        TensorDescriptor.from_tensor(x, [tile.rows, tile.hidden]),
        TensorDescriptor.from_tensor(weight, [tile.vocab, tile.hidden]),
        scales,
        bias,
        logits,
        *logits.shape,
        **_constants(tile, hidden=weight.shape[1]),
    )


def _in_fragment_order(x: torch.Tensor) -> torch.Tensor:
    """`x` [M, K] with each 16 of K reordered as `_streamed` reorders the weights; contiguous."""
    groups = x.unflatten(1, (-1, 4, 2, 2)).transpose(2, 3)
    return groups.contiguous().view(x.shape)


def _grid(tile: HeadTile, logits: torch.Tensor) -> tuple[int]:
    rows, vocab = logits.shape
    return (triton.cdiv(rows, tile.rows) * triton.cdiv(vocab, tile.vocab),)


def _constants(tile: HeadTile, *, hidden: int) -> dict[str, Any]:
    return {
        "HIDDEN": hidden,
        "ROWS": tile.rows,
        "BLOCK_VOCAB": tile.vocab,
        "BLOCK_HIDDEN": tile.hidden,
        "STAGES": tile.stages,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


@triton.jit
def _tile_origin(rows, ROWS: tl.constexpr, BLOCK_VOCAB: tl.constexpr):  # noqa: ANN001, ANN202, N803
    # Programs that share weights are neighbours, so that the second finds them in the L2 cache.
    row_tiles = tl.cdiv(rows, ROWS)
    program = tl.program_id(0)
    return (program % row_tiles) * ROWS, (program // row_tiles) * BLOCK_VOCAB


@triton.jit
def _finished(product):  # noqa: ANN001, ANN202
    # Empty on purpose. On Hopper, Triton 3.6 lets the tensor cores of one iteration run on into
    # the next, which refills the registers they still read: results were wrong by 5 % at 128 rows.
    # A use of the sum inside the loop makes it wait; other work of the multiprocessor fills in.
    return tl.inline_asm_elementwise("", "=f,0", [product], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _accumulated(exact, inputs, sums, ROWS: tl.constexpr):  # noqa: ANN001, ANN202, N803
    # The left operand of a tensor core has at least 16 rows, the right one 8.
    if ROWS < 16:
        return _finished(tl.dot(exact, tl.trans(inputs), sums))
    else:
        return _finished(tl.dot(inputs, tl.trans(exact), sums))


@triton.jit
def _store_logits(sums, scales, bias, logits, rows, vocab, row, word):  # noqa: ANN001, ANN202, PLR0913, PLR0917
    inside = word < vocab
    if scales is None:
        result = sums
    else:
        result = sums * tl.load(scales + word, mask=inside, other=0.0)[:, None]
    if bias is not None:
        result += tl.load(bias + word, mask=inside, other=0.0).to(tl.float32)[:, None]
    target = logits + row.to(tl.int64)[None, :] * vocab + word[:, None]
    mask = inside[:, None] & (row < rows)[None, :]
    tl.store(target, result.to(logits.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _gathered(  # noqa: ANN202, PLR0913, PLR0917
    x, x_stride, weight, scales, bias, logits, rows, vocab,  # noqa: ANN001
    HIDDEN: tl.constexpr, ROWS: tl.constexpr, BLOCK_VOCAB: tl.constexpr,  # noqa: N803
    BLOCK_HIDDEN: tl.constexpr, STAGES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    first_row, first_word = _tile_origin(rows, ROWS, BLOCK_VOCAB)
    row = first_row + tl.arange(0, ROWS)
    word = first_word + tl.arange(0, BLOCK_VOCAB)
    k = tl.arange(0, BLOCK_HIDDEN)
    inside = tl.minimum(word, vocab - 1).to(tl.int64)
    weights = weight + inside[:, None] * HIDDEN + k[None, :]
    inputs = x + row.to(tl.int64)[:, None] * x_stride + k[None, :]
    is_row = (row < rows)[:, None]
    if ROWS < 16:
        sums = tl.zeros((BLOCK_VOCAB, ROWS), tl.float32)
    else:
        sums = tl.zeros((ROWS, BLOCK_VOCAB), tl.float32)
    for step in tl.range(0, HIDDEN, BLOCK_HIDDEN, num_stages=STAGES):
        if HIDDEN % BLOCK_HIDDEN == 0:
            quantized = tl.load(weights, eviction_policy="evict_first")
            inputs_tile = tl.load(inputs, mask=is_row, other=0.0)
        else:
            is_k = (step + k < HIDDEN)[None, :]
            quantized = tl.load(weights, mask=is_k, other=0, eviction_policy="evict_first")
            inputs_tile = tl.load(inputs, mask=is_row & is_k, other=0.0)
        exact = quantized.to(inputs_tile.dtype)
        sums = _accumulated(exact, inputs_tile, sums, ROWS)
        weights += BLOCK_HIDDEN
        inputs += BLOCK_HIDDEN
    if ROWS >= 16:
        sums = tl.trans(sums)
    _store_logits(sums, scales, bias, logits, rows, vocab, row, word)


@triton.jit(do_not_specialize=["rows"])
def _streamed(  # noqa: ANN202, PLR0913, PLR0917
    x, weight, scales, bias, logits, rows, vocab,  # noqa: ANN001
    HIDDEN: tl.constexpr, ROWS: tl.constexpr, BLOCK_VOCAB: tl.constexpr,  # noqa: N803
    BLOCK_HIDDEN: tl.constexpr, STAGES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    first_row, first_word = _tile_origin(rows, ROWS, BLOCK_VOCAB)
    sums = tl.zeros((BLOCK_VOCAB, ROWS), tl.float32)
    for step in tl.range(0, HIDDEN, BLOCK_HIDDEN, num_stages=STAGES):
        quantized = weight.load([first_word, step])
        inputs = x.load([first_row, step])
        # A thread's operand is four elements of K two by two, eight apart. Taking four neighbours
        # instead lets one wide load feed it; `x` comes with its K in the same order.
        groups = tl.reshape(quantized, (BLOCK_VOCAB, BLOCK_HIDDEN // 16, 4, 2, 2))
        fragments = tl.permute(groups, (0, 1, 3, 2, 4))
        exact = tl.reshape(fragments, (BLOCK_VOCAB, BLOCK_HIDDEN)).to(inputs.dtype)
        sums = _finished(tl.dot(exact, tl.trans(inputs), sums))
    row = first_row + tl.arange(0, ROWS)
    word = first_word + tl.arange(0, BLOCK_VOCAB)
    _store_logits(sums, scales, bias, logits, rows, vocab, row, word)
