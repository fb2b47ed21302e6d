"""INT4 linear layers for vLLM's CPU engine on x86 machines without AVX-512.

vLLM 0.32 takes `CPUWNA16LinearKernel` on every CPU, but compiles its operator for AVX-512 alone: on
other machines the engine loads, says that it is healthy and dies at its first request. There the
weights are unpacked while loading and multiplied in plain torch. That takes eight times the memory,
which is nothing for a twin.
"""

from typing import Any

import torch

from sparkdeploy_vllm.row_products import linear_per_row

OPERATOR = "cpu_gemm_wna16"
BITS = 4


def register() -> None:
    """Where the CPU's build of vLLM lacks the operator, put plain torch in its place."""
    try:
        # Importing it loads the compiled operators.
        from vllm import _custom_ops  # noqa: F401
        from vllm.model_executor.kernels.linear.mixed_precision import cpu
    except ImportError:
        return
    if hasattr(torch.ops._C, OPERATOR):
        return
    cpu.CPUWNA16LinearKernel.process_weights_after_loading = unpack_weights
    cpu.CPUWNA16LinearKernel.apply_weights = apply_weights


def unpack_weights(kernel: Any, layer: torch.nn.Module) -> None:
    """Replace a layer's packed weights by FP32 [N, K]: `(value - zero) * scale` of its group.

    Packed are [K / 8, N] or its transpose, scales [groups, N] or its transpose, zero points (where
    the type has no constant one) [groups, N / 8] or its transpose, as vLLM marks them.
    """
    packed = getattr(layer, kernel.w_q_name)
    scales = _upright(getattr(layer, kernel.w_s_name)).float()
    values = _unpack_rows(packed.t() if packed.input_dim == 1 else packed.data)
    zeros = torch.tensor(float(kernel.config.weight_type.bias))
    if kernel.config.zero_points:
        stored = _upright(getattr(layer, kernel.w_zp_name))
        zeros = _unpack_rows(stored.t()).t().unsqueeze(1).float()
    groups = values.float().view(scales.shape[0], -1, scales.shape[1])
    packed.data = ((groups - zeros) * scales.unsqueeze(1)).view(values.shape).t().contiguous()


def apply_weights(
    kernel: Any, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`x` [..., K] times the unpacked weights, plus `bias`; each row independent of the others."""
    weight = getattr(layer, kernel.w_q_name)
    product = linear_per_row(x.reshape(-1, x.shape[-1]).float(), weight)
    if bias is not None:
        product += bias.float()
    return product.to(x.dtype).view(*x.shape[:-1], weight.shape[0])


def _upright(parameter: torch.Tensor) -> torch.Tensor:
    """With groups before outputs."""
    return parameter.t() if parameter.output_dim == 0 else parameter.data


def _unpack_rows(packed: torch.Tensor) -> torch.Tensor:
    """Eight values of an int32, the lowest bits first: [rows, N] to [8 * rows, N]."""
    shifts = torch.arange(0, 32, BITS, dtype=torch.int32)
    values = (packed.unsqueeze(1) >> shifts.view(1, -1, 1)) & (2**BITS - 1)
    return values.reshape(-1, packed.shape[1])
