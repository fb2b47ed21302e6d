"""INT8 LM head on a GPU: one pass over the weights for up to 64 rows, tiles over rows beyond.

The weights are what has to be read, so they are read once, as INT8, turned into the activations'
type in registers (exact: integers up to 127) and multiplied on the tensor cores with FP32 sums.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from sparkdeploy_vllm.kernels.head_choice import HeadChoice, choose_tiles, shipped_choice
from sparkdeploy_vllm.kernels.head_tiles_file import HeadKey, kernel_fingerprint, tuned_folder
from sparkdeploy_vllm.kernels.int8_head_configs import HeadTile, shipped_for, tile_for

ACTIVATION_DTYPES = (torch.bfloat16, torch.float16)
LOGITS_DTYPE = torch.float32
"""What the sums are, so nothing is rounded. BF16's step at a logit of 20 is 0.125."""
HIDDEN_STEP = 16
"""K of one tensor-core instruction; the hidden size must be a multiple of it."""


def fits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `int8_head` takes these: 16-bit activations and an int8 matrix on one CUDA GPU."""
    return (
        x.is_cuda
        and x.dtype in ACTIVATION_DTYPES
        and weight.dtype == torch.int8
        and weight.shape[1] % HIDDEN_STEP == 0
        and weight.is_contiguous()
    )


def int8_head(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype = LOGITS_DTYPE,
) -> torch.Tensor:
    """Logits [..., V] of `x` [..., K]: times int8 `weight` [V, K] times FP32 `scales` [V] + `bias`.

    `x` may be strided; the result is in `out_dtype`, at most rounded once from FP32. Safe in CUDA
    graph capture once `prepare` or `compile_tiles` ran for that `out_dtype`: no synchronisation, no
    tuning, no file. A row's result does not depend on the other rows, only on the tile that their
    number selects.
    """
    rows_in = x.reshape(-1, x.shape[-1])
    tile = tile_for(_tiles_of(weight), rows_in.shape[0])
    logits = head_with_tile(tile, rows_in, (weight, scales, bias), out_dtype)
    return logits.view(*x.shape[:-1], weight.shape[0])


def head_with_tile(
    tile: HeadTile, x: torch.Tensor, matrix: "Matrix", out_dtype: torch.dtype
) -> torch.Tensor:
    """Logits [M, V] of `x` [M, K] by this tile; what `int8_head` does with the tile it chose."""
    logits = torch.empty((x.shape[0], matrix[0].shape[0]), dtype=out_dtype, device=x.device)
    if logits.numel():
        launch = _launch_streamed if tile.path == "streamed" else _launch_gathered
        launch(tile, x, matrix, logits)
    return logits


def prepare(
    weight: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype,
    folder: Path | None = None,
    *,
    out_dtype: torch.dtype = LOGITS_DTYPE,
) -> HeadChoice | None:
    """Choose the tiles of a matrix and compile them for activations of `dtype` and logits of
    `out_dtype`; return the choice and what it is from.

    Looks for tuned tiles in `folder` (default: the cache folder). The one place that reads a file:
    call it before CUDA graphs are captured. Tuned tiles that do not run are given up for those that
    ship. None, and nothing done, when `int8_head` does not take the matrix or the `dtype`.
    """
    if not fits(weight.new_empty((1, weight.shape[1]), dtype=dtype), weight):
        return None
    choice = choose_tiles(key_of(weight), folder or tuned_folder())
    if choice.source == "tuned":
        try:
            return _used(choice, (weight, scales, None), dtype, out_dtype)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with them, those that ship run
            why = f"{choice.origin} is not used: {type(error).__name__}: {error}"
            choice = shipped_choice(choice.key, ignored=why)
    return _used(choice, (weight, scales, None), dtype, out_dtype)


def key_of(weight: torch.Tensor) -> HeadKey:
    """What tuned tiles for this matrix on its card must have been made for."""
    vocab, hidden = weight.shape
    return HeadKey(
        card=torch.cuda.get_device_name(weight.device),
        capability=_capability(weight.device.index),
        vocab=vocab,
        hidden=hidden,
        kernel=kernel_fingerprint(),
        triton=triton.__version__,
    )


def compile_tiles(
    weight: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,
    *,
    out_dtype: torch.dtype = LOGITS_DTYPE,
) -> None:
    """Run every tile once, so that nothing is compiled or loaded during a later graph capture.

    Does nothing for activations of a `dtype`, or a matrix, that `int8_head` does not take.
    """
    for tile in _tiles_of(weight):
        x = torch.zeros((tile.rows, weight.shape[1]), dtype=dtype, device=weight.device)
        if fits(x, weight):
            int8_head(x, weight, scales, bias, out_dtype=out_dtype)


_chosen: dict[tuple[int, int, int], tuple[HeadTile, ...]] = {}
"""By device, vocabulary and hidden size; what is not here uses the tiles that ship."""


def _tiles_of(weight: torch.Tensor) -> tuple[HeadTile, ...]:
    chosen = _chosen.get(_place(weight))
    return chosen or shipped_for(_capability(weight.device.index)).tiles


def _used(
    choice: HeadChoice, matrix: "Matrix", dtype: torch.dtype, out_dtype: torch.dtype
) -> HeadChoice:
    weight, scales, bias = matrix
    _chosen[_place(weight)] = choice.tiles
    compile_tiles(weight, scales, dtype, bias, out_dtype=out_dtype)
    return choice


def _place(weight: torch.Tensor) -> tuple[int, int, int]:
    vocab, hidden = weight.shape
    return weight.device.index, vocab, hidden


@cache
def _capability(device_index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device_index)


Matrix = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Weights, scales, bias."""


def _launch_gathered(tile: HeadTile, x: torch.Tensor, matrix: Matrix, logits: torch.Tensor) -> None:
    weight, scales, bias = matrix
    if x.stride(1) != 1:
        x = x.contiguous()
    _gathered[_grid(tile, logits)](
        x, x.stride(0), weight, scales, bias, logits, *logits.shape, **_constants(tile, weight)
    )


def _launch_streamed(tile: HeadTile, x: torch.Tensor, matrix: Matrix, logits: torch.Tensor) -> None:
    weight, scales, bias = matrix
    x = _in_fragment_order(x)
    _streamed[_grid(tile, logits)](
        TensorDescriptor.from_tensor(x, [tile.rows, tile.hidden]),
        TensorDescriptor.from_tensor(weight, [tile.vocab, tile.hidden]),
        scales,
        bias,
        logits,
        *logits.shape,
        **_constants(tile, weight),
    )


def _in_fragment_order(x: torch.Tensor) -> torch.Tensor:
    """`x` [M, K] with each 16 of K reordered as `_streamed` reorders the weights; contiguous."""
    groups = x.unflatten(1, (-1, 4, 2, 2)).transpose(2, 3)
    return groups.contiguous().view(x.shape)


def _grid(tile: HeadTile, logits: torch.Tensor) -> tuple[int]:
    rows, vocab = logits.shape
    return (triton.cdiv(rows, tile.rows) * triton.cdiv(vocab, tile.vocab),)


def _constants(tile: HeadTile, weight: torch.Tensor) -> dict[str, Any]:
    return {
        "HIDDEN": weight.shape[1],
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
