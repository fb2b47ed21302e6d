"""INT8 LM head arithmetic in plain torch: the reference for the kernels and the path on a CPU."""

import torch
from torch.nn import functional

from sparkdeploy_vllm.ledger import ConversionMismatchError
from sparkdeploy_vllm.row_products import linear_per_row

INT8_MAX = 127.0
CHUNK_ELEMENTS = 12_000_000
"""Elements converted at a time: 48 MB as FP32, so that conversion needs little extra memory."""


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
    _refuse_rows_without_a_scale(scales)
    return quantized, scales


def _refuse_rows_without_a_scale(scales: torch.Tensor) -> None:
    # Once for all chunks: each look waits for the GPU.
    damaged = torch.nonzero(~torch.isfinite(scales))
    if damaged.numel():
        raise ConversionMismatchError(
            f"sparkdeploy: row {int(damaged[0])} of {len(scales)} of the LM head holds a value "
            f"that is no finite number ({len(damaged)} such rows); the checkpoint is damaged: "
            "`sparkdeploy checkpoint verify --deep` says which file"
        )


def int8_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`x` [..., K] times int8 `weight` [V, K] times `scales` [V], plus `bias`; dtype of `x`.

    Works through the vocabulary in chunks and never synchronises with the host. On a CPU each
    row's result is independent of the other rows, bit for bit.
    """
    rows_in = x.reshape(-1, x.shape[-1]).float()
    logits = x.new_empty((rows_in.shape[0], weight.shape[0]))
    product = _row_by_row if x.device.type == "cpu" else device_product
    for rows in row_chunks(weight):
        part = product(rows_in, weight[rows]).mul_(scales[rows])
        if bias is not None:
            part += bias[rows].float()
        logits[:, rows] = part.to(x.dtype)
    return logits.view(*x.shape[:-1], weight.shape[0])


def dequantize_gather(
    ids: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Rows `ids` [...] of the int8 matrix as `dtype` [..., K]."""
    return (weight[ids].float() * scales[ids].unsqueeze(-1)).to(dtype)


def row_chunks(weight: torch.Tensor) -> list[slice]:
    """Slices over the rows of `weight`, each at most CHUNK_ELEMENTS elements (and one row)."""
    rows, columns = weight.shape
    step = max(1, CHUNK_ELEMENTS // max(1, columns))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def device_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`x` [M, K] times int8 `weight` [V, K] transposed: FP32 [M, V].

    A product of 16-bit factors would be rounded to 16 bits before its scale, and sums beyond 65504
    are infinite in FP16. Both factors are exact in TF32 too, if vLLM is told to use it: integers up
    to 127, and activations that were BF16 or FP16.
    """
    return functional.linear(x.float(), weight.float())


def _row_by_row(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return linear_per_row(x, weight.float())
