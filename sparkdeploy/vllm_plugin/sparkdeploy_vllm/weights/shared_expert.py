"""Where a step's few rows take our two launches of a shared expert in place of vLLM's eleven.

vLLM runs a shared expert within one opaque operator, so what happens in its `forward` is seen by no
compiler and is recorded in CUDA graphs as it is. Whether ours gives vLLM's result is looked at on
each layer before it is used.
"""

from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from vllm.model_executor.models.qwen2_moe import Qwen2MoeMLP

from sparkdeploy_vllm.announce import announce_once, warn_once
from sparkdeploy_vllm.weights.conversion import FP8_BLOCK, MOST_ROWS
from sparkdeploy_vllm.weights.reference import FP8_DTYPE

LARGEST_DIFFERENCE = 0.1
"""Of a result's norm. Rounding activations to FP8, as vLLM does, costs 0.03; wrong scales 1."""
DTYPES = (torch.bfloat16, torch.float16)


def install() -> None:
    """Let vLLM's class ask here first; several calls in one process are one."""
    plain = Qwen2MoeMLP.forward
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def forward(self: Module, x: Tensor) -> Tensor:
        if is_fused(self, x, plain):
            return fused(self, x)
        return plain(self, x)

    Qwen2MoeMLP.forward = forward


def is_fused(mlp: Module, x: Tensor, plain: Any) -> bool:
    """Whether these rows are ours; looks at the layer once, outside of any capture."""
    if not x.is_cuda or torch.compiler.is_compiling():
        return False
    agrees: bool | None = getattr(mlp, "sparkdeploy_agrees", None)
    if agrees is None and not torch.cuda.is_current_stream_capturing():
        agrees = mlp.sparkdeploy_agrees = fits(mlp, x.dtype) and agrees_with(mlp, x, plain)
    return bool(agrees) and x.dim() == 2 and 0 < x.shape[0] <= MOST_ROWS


def fits(mlp: Module, dtype: torch.dtype) -> bool:
    """Whether a layer's matrices lie as the kernel reads them; vLLM's kernels rearrange some."""
    own_gate, down = (
        getattr(mlp.expert_gate, "weight", None),
        getattr(mlp.down_proj, "weight", None),
    )
    if own_gate is None or down is None or down.dim() != 2 or dtype not in DTYPES:
        return False
    hidden, inner = down.shape
    return (
        (own_gate.shape, own_gate.dtype) == ((1, hidden), dtype)
        and mlp.expert_gate.bias is None
        and not mlp.down_proj.reduce_results
        and _is_in_blocks(mlp.gate_up_proj, 2 * inner, hidden)
        and _is_in_blocks(mlp.down_proj, hidden, inner)
    )


def _is_in_blocks(layer: Module, outputs: int, inputs: int) -> bool:
    weight, scales = (getattr(layer, name, None) for name in ("weight", "weight_scale_inv"))
    if weight is None or scales is None or outputs % FP8_BLOCK or inputs % FP8_BLOCK:
        return False
    blocks = (outputs // FP8_BLOCK, inputs // FP8_BLOCK)
    return (
        (weight.dtype, weight.shape) == (FP8_DTYPE, (outputs, inputs))
        and (scales.dtype, scales.shape) == (torch.float32, blocks)
        and weight.is_contiguous()
        and scales.is_contiguous()
        and layer.bias is None
    )


def agrees_with(mlp: Module, like: Tensor, plain: Any) -> bool:
    """Whether eight made-up rows give what vLLM's kernels make of them; compiles the kernels."""
    seeded = torch.Generator(device=like.device).manual_seed(1)
    shape = (MOST_ROWS, mlp.down_proj.weight.shape[0])
    x = torch.randn(shape, generator=seeded, device=like.device, dtype=like.dtype)
    wanted, ours = plain(mlp, x).float(), fused(mlp, x).float()
    difference = float((ours - wanted).norm() / wanted.norm().clamp_min(1e-30))
    # A NaN is no agreement.
    if difference <= LARGEST_DIFFERENCE:
        announce_once("sparkdeploy: shared experts in two launches, for up to 8 rows")
        return True
    warn_once(
        f"sparkdeploy: shared experts stay vLLM's own: two launches differ by {difference:.2g} "
        f"of its result, and {LARGEST_DIFFERENCE} is allowed"
    )
    return False


def fused(mlp: Module, x: Tensor) -> Tensor:
    # Needs Triton, which machines without a GPU lack.
    from sparkdeploy_vllm.weights.shared_expert_kernel import Fp8Matrix, shared_expert

    gate_up, down = (
        Fp8Matrix(layer.weight, layer.weight_scale_inv)
        for layer in (mlp.gate_up_proj, mlp.down_proj)
    )
    return shared_expert(x, gate_up, down, mlp.expert_gate.weight)
