"""FP8 blocks and the INT8 LM head in plain torch: the kernels' reference and the path on a CPU.

FP8 is the scheme of vLLM's per-block online method: weights e4m3 in blocks of 128 x 128 with FP32
scales, activations e4m3 per token in groups of 128 with FP32 scales found on the fly.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from sparkdeploy_vllm.weights.conversion import FP8_BLOCK
from sparkdeploy_vllm.weights.ledger import ConversionMismatchError

FP8_BLOCKS = (FP8_BLOCK, FP8_BLOCK)
FP8_DTYPE = torch.float8_e4m3fn
FP8_MAX = 448.0
SMALLEST_WEIGHT_AMAX = 1e-4
SMALLEST_ACTIVATION_AMAX = 1e-10
INT8_MAX = 127.0
NOT_LOADED = float("nan")
"""What a weight begins as, so that one that is never loaded is found."""
CHUNK_ELEMENTS = 12_000_000
"""Elements converted at a time: 48 MB as FP32, so that conversion needs little extra memory."""


# An operator of its own: a compiler that looked inside would unroll the rows, and compile anew for
# every number of them.
@torch.library.custom_op("sparkdeploy::linear_per_row", mutates_args=())
def linear_per_row(x: Tensor, weight: Tensor) -> Tensor:
    """FP32 `x` [M, K] times FP32 `weight` [N, K] transposed: FP32 [M, N].

    One matrix-vector product per row, always of the same shape and alignment: a general matrix
    product picks its kernel, and with it the order of summation, by M, and greedy decoding with
    speculation (several rows a step) would then drift away from decoding without (one row).
    """
    product = x.new_empty((x.shape[0], weight.shape[0]))
    row_input = x.new_empty(x.shape[1])
    row_output = x.new_empty(weight.shape[0])
    for index in range(x.shape[0]):
        row_input.copy_(x[index])
        torch.mv(weight, row_input, out=row_output)
        product[index] = row_output
    return product


def quantize_blocks(weight: Tensor, block: tuple[int, int] = FP8_BLOCKS) -> tuple[Tensor, Tensor]:
    """Quantise [N, K] to e4m3 [N, K] and FP32 scales, one for each block: [ceil(N / 128), ...]."""
    rows, columns = weight.shape
    padded = functional.pad(weight.float(), (0, -columns % block[1], 0, -rows % block[0]))
    tiles = padded.view(padded.shape[0] // block[0], block[0], -1, block[1])
    amax = tiles.abs().amax(dim=(1, 3), keepdim=True).clamp_min(SMALLEST_WEIGHT_AMAX)
    scales = amax / FP8_MAX
    quantized = (tiles * (1.0 / scales)).clamp_(-FP8_MAX, FP8_MAX).to(FP8_DTYPE)
    return quantized.view_as(padded)[:rows, :columns].contiguous(), scales[:, 0, :, 0].contiguous()


def dequantize_blocks(quantized: Tensor, scales: Tensor) -> Tensor:
    """Undo `quantize_blocks`: FP32 [N, K]. As many scales as rows are one for each row."""
    rows, columns = quantized.shape
    if scales.shape == (rows, 1):
        return quantized.float() * scales
    spread = scales.repeat_interleave(FP8_BLOCK, 0)[:rows].repeat_interleave(FP8_BLOCK, 1)
    return quantized.float() * spread[:, :columns]


def requantize_activations(x: Tensor, group: int = FP8_BLOCK) -> Tensor:
    """Round [M, K] to what the FP8 kernel sees (e4m3 per token and group); FP32 [M, K]."""
    columns = x.shape[1]
    padded = functional.pad(x.float(), (0, -columns % group))
    groups = padded.view(x.shape[0], padded.shape[1] // group, group)
    scales = groups.abs().amax(dim=2, keepdim=True).clamp_min(SMALLEST_ACTIVATION_AMAX) / FP8_MAX
    rounded = (groups / scales).clamp_(-FP8_MAX, FP8_MAX).to(FP8_DTYPE).float() * scales
    return rounded.view_as(padded)[:, :columns].contiguous()


@torch.library.custom_op("sparkdeploy::fp8_block_linear", mutates_args=())
def fp8_block_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """`x` [..., K] times FP8 `weight` [N, K] transposed, plus `bias`; dtype of `x`, [..., N].

    Every row's result is independent of the other rows, bit for bit. One operator, so that
    torch.compile takes it as it is (the loop over rows must not be traced).
    """
    is_per_row = scales.shape == (weight.shape[0], 1)
    group = weight.shape[1] if is_per_row else FP8_BLOCK
    rows = requantize_activations(x.reshape(-1, x.shape[-1]), group)
    product = linear_per_row(rows, dequantize_blocks(weight, scales))
    if bias is not None:
        product += bias.float()
    return product.to(x.dtype).view(*x.shape[:-1], weight.shape[0])


@linear_per_row.register_fake
@fp8_block_linear.register_fake
def _empty_product(x: Tensor, weight: Tensor, *_: object) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise [V, K] to int8 [V, K] and FP32 scales [V], symmetric per row, chunk by chunk.

    `scale = amax / 127`; a row of zeros gets scale 1. ConversionMismatchError names the first row
    that holds a NaN or an infinity, which integers cannot.
    """
    quantized = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for rows in row_chunks(weight):
        chunk = weight[rows].float()
        lowest, highest = torch.aminmax(chunk, dim=1)
        # A NaN or an infinity in a row stays one in its scale.
        wanted = torch.maximum(lowest.neg_(), highest).div_(INT8_MAX)
        scales[rows] = torch.where(wanted == 0, 1.0, wanted)
        chunk.div_(scales[rows].unsqueeze(1)).round_().clamp_(-INT8_MAX, INT8_MAX)
        quantized[rows] = chunk.to(torch.int8)
    refuse_damaged_rows(torch.isfinite(scales))
    return quantized, scales


def int8_linear(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, **out: torch.dtype
) -> Tensor:
    """`x` [..., K] times int8 `weight` [V, K] times `scales` [V], plus `bias`, as `out_dtype`."""

    def part(rows_in: Tensor, rows: slice) -> Tensor:
        return head_product(rows_in, weight[rows].float()).mul_(scales[rows])

    return logits_in_chunks(x, weight, part, bias, **out)


def logits_in_chunks(
    x: Tensor,
    weight: Tensor,
    part: Callable[[Tensor, slice], Tensor],
    bias: Tensor | None,
    *,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Logits [..., V] of `x` [..., K] as `out_dtype`; `part` gives FP32 [M, rows] of some rows.

    Summed in FP32 and rounded once, if at all, like the kernel on a GPU. Works through the
    vocabulary in chunks and never synchronises with the host. On a CPU each row's result is
    independent of the other rows, bit for bit.
    """
    rows_in = x.reshape(-1, x.shape[-1]).float()
    logits = x.new_empty((rows_in.shape[0], weight.shape[0]), dtype=out_dtype)
    for rows in row_chunks(weight):
        product = part(rows_in, rows)
        if bias is not None:
            product += bias[rows].float()
        logits[:, rows] = product.to(out_dtype)
    return logits.view(*x.shape[:-1], weight.shape[0])


def dequantize_gather(ids: Tensor, weight: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows `ids` [...] of the int8 matrix as `dtype` [..., K]."""
    return (weight[ids].float() * scales[ids].unsqueeze(-1)).to(dtype)


def row_chunks(weight: Tensor) -> list[slice]:
    """Slices over the rows of `weight`, each at most CHUNK_ELEMENTS elements (and one row)."""
    rows, columns = weight.shape
    step = max(1, CHUNK_ELEMENTS // max(1, columns))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def refuse_damaged_rows(is_finite: Tensor) -> None:
    """Raise ConversionMismatchError where a row of the head, bool [V], held no finite number."""
    # Once for all chunks: each look waits for the GPU.
    damaged = torch.nonzero(~is_finite)
    if damaged.numel():
        raise ConversionMismatchError(
            f"sparkdeploy: row {int(damaged[0])} of {len(is_finite)} of the LM head holds a value "
            f"that is no finite number ({len(damaged)} such rows); the checkpoint is damaged: "
            "`sparkdeploy checkpoint verify --deep` says which file"
        )


def head_product(x: Tensor, weight: Tensor) -> Tensor:
    """FP32 `x` [M, K] times FP32 rows [V, K] of a head transposed: FP32 [M, V]."""
    return linear_per_row(x, weight) if x.device.type == "cpu" else device_product(x, weight)


def device_product(x: Tensor, weight: Tensor) -> Tensor:
    """`x` [M, K] times int8 `weight` [V, K] transposed: FP32 [M, V].

    A product of 16-bit factors would be rounded to 16 bits before its scale, and sums beyond 65504
    are infinite in FP16. Both factors are exact in TF32 too, if vLLM is told to use it: integers up
    to 127, and activations that were BF16 or FP16.
    """
    return functional.linear(x.float(), weight.float())
