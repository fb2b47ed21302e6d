"""FP8 tensors that the checkpoint brings: compared with the BF16 ones, then in their place."""

from typing import Any

import torch
from torch.nn import Module
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.platforms import current_platform

from sparkdeploy_vllm.fp8_books import LedgerEntry
from sparkdeploy_vllm.fp8_checkpoint import (
    BLOCK,
    SCALE,
    WEIGHT,
    CheckpointKernelMethod,
    add_fp8_parameters,
)
from sparkdeploy_vllm.fp8_linear import ReferenceFp8LinearMethod, replace_parameter
from sparkdeploy_vllm.fp8_maths import FP8_DTYPE, dequantize_blocks
from sparkdeploy_vllm.ledger import ConversionMismatchError

OWN_WEIGHT, OWN_SCALE = "fp8_weight", "fp8_scale_inv"
"""What the tensors are called beside the `weight` of the untouched download."""
OWN_NAMES = (OWN_WEIGHT, OWN_SCALE)
LARGEST_DIFFERENCE = 0.1
"""Of a block's norm. Rounding to e4m3 costs 0.03; another tensor, or none, 1 and more."""


class PrebuiltReferenceMethod(ReferenceFp8LinearMethod):
    """The plain torch path with the checkpoint's own FP8 tensors."""

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        """Create the BF16 weight, and the FP8 weight and its scales beside it."""
        add_fp8_parameters(layer, OWN_NAMES, *weight_args, **extra_weight_attrs)
        super().create_weights(layer, *weight_args, **extra_weight_attrs)

    def process_weights_after_loading(self, layer: Module) -> None:
        """Put the FP8 tensors in the place of the BF16 weight, which is freed; once per load."""
        if layer.weight.dtype == FP8_DTYPE:
            return
        take_own_parameters(layer, self.entry)
        self.entry.converted(layer)


class PrebuiltKernelMethod(CheckpointKernelMethod):
    """vLLM's own kernels with the checkpoint's own FP8 tensors."""

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        """Let vLLM choose its kernel by the FP8 weight, then make room for the BF16 one too."""
        super().create_weights(layer, *weight_args, **extra_weight_attrs)
        del layer.weight, layer.weight_scale_inv
        add_fp8_parameters(layer, OWN_NAMES, *weight_args, **extra_weight_attrs)
        UnquantizedLinearMethod().create_weights(layer, *weight_args, **extra_weight_attrs)

    def process_weights_after_loading(self, layer: Module) -> None:
        """Put the FP8 tensors in the place of the BF16 weight; then what vLLM does with them."""
        if getattr(layer, OWN_WEIGHT, None) is None:
            return
        take_own_parameters(layer, self.entry)
        self.entry.converted(layer)
        super().process_weights_after_loading(layer)


def prebuilt_linear_method(entry: LedgerEntry) -> LinearMethodBase:
    """Return the method for this platform."""
    if current_platform.is_cpu():
        return PrebuiltReferenceMethod(entry)
    return PrebuiltKernelMethod(entry)


def take_own_parameters(layer: Module, entry: LedgerEntry) -> None:
    """Make the FP8 tensors `weight` and `weight_scale_inv`, and free the BF16 weight.

    Raises ConversionMismatchError when they were not loaded or are not this layer's weights.
    """
    quantized, scales = getattr(layer, OWN_WEIGHT).data, getattr(layer, OWN_SCALE).data
    if entry.checks_weights():
        _refuse_another_layers(layer.weight.data, quantized, scales, entry.name)
    delattr(layer, OWN_WEIGHT)
    delattr(layer, OWN_SCALE)
    replace_parameter(layer, WEIGHT, quantized)
    replace_parameter(layer, SCALE, scales)


def _refuse_another_layers(
    weight: torch.Tensor, quantized: torch.Tensor, scales: torch.Tensor, name: str
) -> None:
    difference = largest_difference(weight, quantized, scales)
    if not difference <= LARGEST_DIFFERENCE:
        raise ConversionMismatchError(
            f"sparkdeploy: the prebuilt FP8 tensors of {name} are not the layer's weights "
            f"(a block differs by {difference:.3f} of its norm); they are of another model, "
            "damaged, or were not loaded"
        )


def largest_difference(
    weight: torch.Tensor, quantized: torch.Tensor, scales: torch.Tensor
) -> float:
    """How far the FP8 [N, K] of any block is from `weight` [N, K], as a part of the block's norm.

    Not a number when a weight or a scale is none.
    """
    exact = weight.float()
    error = dequantize_blocks(quantized, scales) - exact
    blocks = (weight.shape[0] // BLOCK[0], BLOCK[0], weight.shape[1] // BLOCK[1], BLOCK[1])
    squares = [part.view(blocks).square().sum(dim=(1, 3)) for part in (error, exact)]
    return float((squares[0] / squares[1].clamp_min(1e-12)).sqrt().max())
