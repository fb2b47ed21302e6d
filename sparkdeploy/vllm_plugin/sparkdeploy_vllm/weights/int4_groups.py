"""INT4 in groups of 128 inputs, and GPTQ's packing of it, in plain torch on any device.

The scheme is vLLM's `quantize_weights` for `uint4b8`, the packing its `pack_rows`
(layers/quantization/utils/quant_utils.py): what Marlin's kernel for routed experts is loaded with.
"""

import torch
from torch import Tensor

from sparkdeploy_vllm.weights.conversion import INT4_GROUP
from sparkdeploy_vllm.weights.ledger import ConversionMismatchError

BITS = 4
LOWEST, HIGHEST = -8, 7
ZERO = 8
"""The code of a value of nothing: codes are stored without a sign."""
IN_A_WORD = 32 // BITS
SHRINKING = tuple(1 - step / 40 for step in range(1, 13))
"""Parts of the scale that reaches every value, down to 0.7. Of 1024 x 3072 normal weights nine
groups in ten have their least error at 0.8 or more, and the squared error of all is 18 % less."""


def quantize_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise 16-bit [N, K] to codes uint8 [N, K] and scales [N, K / 128] of the weight's dtype.

    Round to nearest by the least scale that reaches every value of a group, which is rounded to
    its dtype first: what a code stands for is at most half a step from the weight. A group with a
    value that is no finite number gets a scale that is none.
    """
    rows, columns = weight.shape
    groups = weight.float().reshape(rows, columns // INT4_GROUP, INT4_GROUP)
    lowest, highest = torch.aminmax(groups, dim=2, keepdim=True)
    reaching = torch.maximum(highest / HIGHEST, lowest / LOWEST)
    # Below the least normal number a scale is too coarse to be divided by, and zero at last.
    scales = reaching.clamp_min(torch.finfo(weight.dtype).tiny).to(weight.dtype)
    codes = _nearest_codes(groups, scales)
    return codes.to(torch.uint8).view(rows, columns), scales.squeeze(2)


def fit_groups(weight: Tensor) -> tuple[Tensor, Tensor]:
    """As `quantize_groups`, with the scale of `SHRINKING` whose squared error is the least.

    A smaller scale rounds a group finer and cuts off what it no longer reaches. Only what is cut
    off can be more than half a step from the weight, and no group's error is above that of
    `quantize_groups`, which is the first that is tried.
    """
    rows, columns = weight.shape
    groups = weight.float().view(rows, columns // INT4_GROUP, INT4_GROUP)
    codes, scales = quantize_groups(weight)
    codes = codes.view_as(groups)
    reaching, least = scales, _squared_error(codes, scales, groups)
    for factor in SHRINKING:
        tried = (reaching.float() * factor).to(weight.dtype)
        tried_codes = _nearest_codes(groups, tried.unsqueeze(2)).to(torch.uint8)
        error = _squared_error(tried_codes, tried, groups)
        # Also false where either is no number, so that damage stays to be seen.
        is_better = error < least
        least = torch.where(is_better, error, least)
        scales = torch.where(is_better, tried, scales)
        codes = torch.where(is_better.unsqueeze(2), tried_codes, codes)
    return codes.view(rows, columns), scales


def refuse_damaged_scales(name: str, scales: Tensor) -> None:
    """Raise ConversionMismatchError where a weight of layer `name` was no finite number."""
    # Once for all of a layer's scales: each look waits for the GPU.
    if not bool(torch.isfinite(scales).all()):
        raise ConversionMismatchError(
            f"sparkdeploy: {name} holds a value that is no finite number, or was not loaded; the "
            "checkpoint is damaged: `sparkdeploy checkpoint verify --deep` says which file"
        )


def _squared_error(codes: Tensor, scales: Tensor, groups: Tensor) -> Tensor:
    """FP32 [N, K / 128]: of codes [N, K / 128, 128] by scales [N, K / 128]."""
    return ((codes.float() - ZERO) * scales.float().unsqueeze(2) - groups).square().sum(2)


def _nearest_codes(groups: Tensor, scales: Tensor) -> Tensor:
    return (groups / scales.float()).round_().clamp_(LOWEST, HIGHEST).add_(ZERO)


def dequantize_groups(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the values that codes [N, K] stand for, [N, K] of the scales' dtype."""
    rows, columns = codes.shape
    groups = codes.float().view(rows, columns // INT4_GROUP, INT4_GROUP) - ZERO
    return (groups * scales.float().unsqueeze(2)).to(scales.dtype).view(rows, columns)


def pack_inputs(codes: Tensor) -> Tensor:
    """Pack eight inputs of an output into an int32, the first lowest: [N, K] to [K / 8, N]."""
    rows, columns = codes.shape
    words = codes.view(rows, columns // IN_A_WORD, IN_A_WORD).to(torch.int32)
    packed = words[..., 0].clone()
    for place in range(1, IN_A_WORD):
        packed |= words[..., place] << BITS * place
    return packed.t().contiguous()
