"""INT8 LM head arithmetic in plain torch: the reference for the kernels and the path on a CPU."""

import torch
from torch.nn import functional

from sparkdeploy_vllm.row_products import linear_per_row

INT8_MAX = 127.0
CHUNK_ELEMENTS = 12_000_000
"""Elements converted at a time: 48 MB as FP32, so that conversion needs little extra memory."""


def quantize_rows(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise [V, K] to int8 [V, K] and FP32 scales [V], symmetric per row, chunk by chunk.

    `scale = amax / 127`; a row of zeros gets scale 1.
    """
    quantized = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for rows in row_chunks(weight):
        chunk = weight[rows].float()
        lowest, highest = torch.aminmax(chunk, dim=1)
        amax = torch.maximum(lowest.neg_(), highest)
        scales[rows] = torch.where(amax > 0, amax / INT8_MAX, torch.ones_like(amax))
        chunk.div_(scales[rows].unsqueeze(1)).round_().clamp_(-INT8_MAX, INT8_MAX)
        quantized[rows] = chunk.to(torch.int8)
    return quantized, scales


def int8_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`x` [..., K] times int8 `weight` [V, K] times `scales` [V], plus `bias`; dtype of `x`.

    Works through the vocabulary in chunks and never synchronises with the host. On a CPU each
    row's result is independent of the other rows, bit for bit.
    """
    rows_in = x.reshape(-1, x.shape[-1])
    logits = x.new_empty((rows_in.shape[0], weight.shape[0]))
    product = _exact_product if x.device.type == "cpu" else _device_product
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


def _exact_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return linear_per_row(x.float(), weight.float())


def _device_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    # Integers up to 127 are exact in BF16 and FP16, and the product accumulates in FP32.
    return functional.linear(x, weight.to(x.dtype)).float()
