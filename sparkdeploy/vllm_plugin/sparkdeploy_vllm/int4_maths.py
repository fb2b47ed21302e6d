"""INT4 in groups of 128 inputs, and GPTQ's packing of it, in plain torch on any device.

The scheme is vLLM's `quantize_weights` for `uint4b8`, the packing its `pack_rows`
(layers/quantization/utils/quant_utils.py): what Marlin's kernel for routed experts is loaded with.
"""

import torch
from torch import Tensor

from sparkdeploy_vllm.treatment import INT4_GROUP

BITS = 4
LOWEST, HIGHEST = -8, 7
ZERO = 8
"""The code of a value of nothing: codes are stored without a sign."""
IN_A_WORD = 32 // BITS


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
    codes = (groups / scales.float()).round_().clamp_(LOWEST, HIGHEST).add_(ZERO)
    return codes.to(torch.uint8).view(rows, columns), scales.squeeze(2)


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
