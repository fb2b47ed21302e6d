"""How a BF16 linear layer of the checkpoint becomes FP8 while it is loaded."""

from typing import Any

import torch
from torch.nn import Module, Parameter
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.platforms import current_platform

from sparkdeploy_vllm.fp8_books import LedgerEntry, check_parts, keep_books
from sparkdeploy_vllm.fp8_maths import FP8_DTYPE, fp8_block_linear, quantize_blocks

try:
    from vllm.model_executor.layers.quantization.online.fp8 import Fp8PerBlockOnlineLinearMethod
except ImportError:  # vLLM older than 0.20.2
    Fp8PerBlockOnlineLinearMethod = None


class ReferenceFp8LinearMethod(LinearMethodBase):
    """FP8 in plain torch, for machines without FP8 kernels (rehearsals, tests)."""

    def __init__(self, entry: LedgerEntry) -> None:
        self.entry = entry
        self.plain = UnquantizedLinearMethod()

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        """Create the BF16 weight exactly as an unquantised layer does (loading, TP sharding)."""
        check_parts(self.entry.name, *weight_args, **extra_weight_attrs)
        self.plain.create_weights(layer, *weight_args, **extra_weight_attrs)
        self.entry.created()

    def process_weights_after_loading(self, layer: Module) -> None:
        """Replace `weight` by e4m3 [N, K] plus FP32 `weight_scale_inv`, once per load."""
        if layer.weight.dtype == FP8_DTYPE:
            return
        quantized, scales = quantize_blocks(layer.weight.data)
        replace_parameter(layer, "weight", quantized)
        replace_parameter(layer, "weight_scale_inv", scales)
        self.entry.converted(layer)

    def apply(
        self, layer: Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[..., K] to [..., N] in the dtype of `x`."""
        return fp8_block_linear(x, layer.weight, layer.weight_scale_inv, bias)


def fp8_linear_method(entry: LedgerEntry) -> LinearMethodBase:
    """Return the method for this platform; ValueError when this vLLM has none for its GPU.

    On GPUs vLLM's own (CUTLASS on SM12x), for releases that cannot be told the layers; on CPUs
    ours, as vLLM's kernels for them need AMX and leave the activations BF16.
    """
    if current_platform.is_cpu():
        return ReferenceFp8LinearMethod(entry)
    if Fp8PerBlockOnlineLinearMethod is None:
        raise ValueError(
            "sparkdeploy: this vLLM has no online per-block FP8 (it came with 0.20.2); "
            "use a newer engine or a checkpoint with prebuilt FP8 tensors"
        )
    return keep_books(Fp8PerBlockOnlineLinearMethod(), entry)


def replace_parameter(layer: Module, name: str, value: torch.Tensor) -> None:
    """Give `layer` a new parameter; a tensor shared with another layer is left as it is."""
    if hasattr(layer, name):
        delattr(layer, name)
    layer.register_parameter(name, Parameter(value, requires_grad=False))
