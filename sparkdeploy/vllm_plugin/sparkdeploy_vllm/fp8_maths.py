"""FP8 block arithmetic in plain torch: the reference for the kernels and the path on a CPU.

Same scheme as vLLM's per-block online method: weights e4m3 in blocks of 128 x 128 with FP32
scales, activations e4m3 per token in groups of 128 with FP32 scales found on the fly.
"""

import torch
from torch.nn import functional

from sparkdeploy_vllm.row_products import linear_per_row

FP8_DTYPE = torch.float8_e4m3fn
FP8_MAX = 448.0
SMALLEST_WEIGHT_AMAX = 1e-4
SMALLEST_ACTIVATION_AMAX = 1e-10


def quantize_blocks(
    weight: torch.Tensor, block: tuple[int, int] = (128, 128)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise [N, K] to e4m3 [N, K] and FP32 scales [ceil(N / block[0]), ceil(K / block[1])].

    Blocks at the edges may be partial. `weight ~ quantized * scale`.
    """
    rows, columns = weight.shape
    padded = _pad_to_blocks(weight.float(), block)
    tiles = padded.view(padded.shape[0] // block[0], block[0], -1, block[1])
    amax = tiles.abs().amax(dim=(1, 3), keepdim=True).clamp_min(SMALLEST_WEIGHT_AMAX)
    scales = amax / FP8_MAX
    quantized = (tiles * (1.0 / scales)).clamp_(-FP8_MAX, FP8_MAX).to(FP8_DTYPE)
    return quantized.view_as(padded)[:rows, :columns].contiguous(), scales[:, 0, :, 0].contiguous()


def dequantize_blocks(
    quantized: torch.Tensor, scales: torch.Tensor, block: tuple[int, int] = (128, 128)
) -> torch.Tensor:
    """Undo `quantize_blocks`: FP32 [N, K]."""
    rows, columns = quantized.shape
    spread = scales.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)
    return quantized.float() * spread[:, :columns]


def requantize_activations(x: torch.Tensor, group: int = 128) -> torch.Tensor:
    """Round [M, K] to what the FP8 kernel sees (e4m3 per token and group); FP32 [M, K]."""
    columns = x.shape[1]
    padded = functional.pad(x.float(), (0, -columns % group))
    groups = padded.view(x.shape[0], padded.shape[1] // group, group)
    scales = groups.abs().amax(dim=2, keepdim=True).clamp_min(SMALLEST_ACTIVATION_AMAX) / FP8_MAX
    rounded = (groups / scales).clamp_(-FP8_MAX, FP8_MAX).to(FP8_DTYPE).float() * scales
    return rounded.view_as(padded)[:, :columns].contiguous()


@torch.library.custom_op("sparkdeploy::fp8_block_linear", mutates_args=())
def fp8_block_linear(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`x` [..., K] times FP8 `weight` [N, K] transposed, plus `bias`; dtype of `x`, [..., N].

    Every row's result is independent of the other rows, bit for bit. One operator, so that
    torch.compile takes it as it is (the loop over rows must not be traced).
    """
    rows = requantize_activations(x.reshape(-1, x.shape[-1]))
    product = linear_per_row(rows, dequantize_blocks(weight, scales))
    if bias is not None:
        product += bias.float()
    return product.to(x.dtype).view(*x.shape[:-1], weight.shape[0])


@fp8_block_linear.register_fake
def _(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,  # noqa: ARG001 - the operator's signature
    bias: torch.Tensor | None,  # noqa: ARG001 - the operator's signature
) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def _pad_to_blocks(weight: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    rows, columns = weight.shape
    return functional.pad(weight, (0, -columns % block[1], 0, -rows % block[0]))
