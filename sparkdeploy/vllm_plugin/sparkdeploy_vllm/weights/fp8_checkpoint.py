"""FP8 tensors that the checkpoint brings.

Finished: under the layer's own names, so there never is a BF16 weight and nothing is converted.
Prebuilt: beside the BF16 weight of the untouched download; compared with it, then in its place.
Each has a method in plain torch, for CPUs, and one with vLLM's own kernels.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod
from vllm.model_executor.parameter import BlockQuantScaleParameter, ModelWeightParameter
from vllm.platforms import current_platform

from sparkdeploy_vllm.weights.conversion import FP8_BLOCK
from sparkdeploy_vllm.weights.fp8_linear import (
    LedgerEntry,
    ReferenceFp8LinearMethod,
    replace_parameter,
)
from sparkdeploy_vllm.weights.ledger import ConversionMismatchError
from sparkdeploy_vllm.weights.reference import FP8_DTYPE, NOT_LOADED, dequantize_blocks

BLOCK = (FP8_BLOCK, FP8_BLOCK)
NAMES = ("weight", "weight_scale_inv")
OWN_NAMES = ("fp8_weight", "fp8_scale_inv")
"""What prebuilt tensors are called, beside the `weight` of the untouched download."""
LARGEST_DIFFERENCE = 0.1
"""Of a block's norm. Rounding to e4m3 costs 0.03; another tensor, or none, 1 and more."""


class _KernelMethod(Fp8LinearMethod):
    """vLLM's own kernels for FP8 in blocks that need not be made, entered in the books."""

    def __init__(self, entry: LedgerEntry) -> None:
        super().__init__(Fp8Config(True, "dynamic", weight_block_size=list(BLOCK)))
        self.entry = entry

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        super().create_weights(layer, *weight_args, **extra_weight_attrs)
        self.entry.created()


class FinishedReferenceMethod(ReferenceFp8LinearMethod):
    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        add_fp8_parameters(layer, NAMES, *weight_args, **extra_weight_attrs)
        self.entry.created()

    def process_weights_after_loading(self, layer: Module) -> None:
        check_loaded(layer, self.entry)
        for name in NAMES:
            replace_parameter(layer, name, getattr(layer, name).data)
        self.entry.converted(layer)


class FinishedKernelMethod(_KernelMethod):
    def process_weights_after_loading(self, layer: Module) -> None:
        check_loaded(layer, self.entry)
        self.entry.converted(layer)
        super().process_weights_after_loading(layer)


class PrebuiltReferenceMethod(ReferenceFp8LinearMethod):
    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        add_fp8_parameters(layer, OWN_NAMES, *weight_args, **extra_weight_attrs)
        super().create_weights(layer, *weight_args, **extra_weight_attrs)

    def process_weights_after_loading(self, layer: Module) -> None:
        if layer.weight.dtype == FP8_DTYPE:  # processed twice
            return
        take_own_parameters(layer, self.entry)
        self.entry.converted(layer)


class PrebuiltKernelMethod(_KernelMethod):
    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        # vLLM chooses its kernel by the FP8 weight, which then makes room for the BF16 one.
        super().create_weights(layer, *weight_args, **extra_weight_attrs)
        del layer.weight, layer.weight_scale_inv
        add_fp8_parameters(layer, OWN_NAMES, *weight_args, **extra_weight_attrs)
        UnquantizedLinearMethod().create_weights(layer, *weight_args, **extra_weight_attrs)

    def process_weights_after_loading(self, layer: Module) -> None:
        if not hasattr(layer, OWN_NAMES[0]):  # processed twice
            return
        take_own_parameters(layer, self.entry)
        self.entry.converted(layer)
        super().process_weights_after_loading(layer)


_METHODS = {
    "finished": (FinishedReferenceMethod, FinishedKernelMethod),
    "prebuilt": (PrebuiltReferenceMethod, PrebuiltKernelMethod),
}


def checkpoint_linear_method(mode: str, entry: LedgerEntry) -> LinearMethodBase:
    reference, kernels = _METHODS[mode]
    return reference(entry) if current_platform.is_cpu() else kernels(entry)


def add_fp8_parameters(
    layer: Module,
    names: tuple[str, str],
    input_size_per_partition: int,
    output_partition_sizes: list[int],
    *_: Any,
    weight_loader: Any,
    **__: Any,
) -> None:
    """Register FP8 weight [N, K] and FP32 scales [N / 128, K / 128], all not-a-number till loaded.

    Arguments after the names as `create_weights` has them. ValueError when a partition (a
    tensor-parallel rank's, or one of a fused layer's) ends within a block: the blocks of its
    neighbour would be scaled by the wrong scales.
    """
    columns, row_partitions = input_size_per_partition, output_partition_sizes
    if any(count % FP8_BLOCK for count in (columns, *row_partitions)):
        raise ValueError(
            f"sparkdeploy: FP8 blocks of {BLOCK} do not divide {row_partitions} x {columns}; "
            "use fewer tensor-parallel ranks, or fp8_dense mode online"
        )
    rows = sum(row_partitions)
    weight = torch.full((rows, columns), NOT_LOADED).to(FP8_DTYPE)
    # Torch's default is the model's dtype now, and the kernels take FP32 alone.
    blocks = (rows // FP8_BLOCK, columns // FP8_BLOCK)
    scales = torch.full(blocks, NOT_LOADED, dtype=torch.float32)
    places = {"input_dim": 1, "output_dim": 0, "weight_loader": weight_loader}
    layer.weight_block_size = list(BLOCK)
    layer.register_parameter(names[0], ModelWeightParameter(data=weight, **places))
    layer.register_parameter(names[1], BlockQuantScaleParameter(data=scales, **places))


def check_loaded(layer: Module, entry: LedgerEntry) -> None:
    """Parameters begin as what no checkpoint holds, so this also finds what was never loaded."""
    if not entry.checks_weights():
        return
    scales = layer.weight_scale_inv.data.float()
    weight_is_nan = torch.isnan(layer.weight.data.float()).any()
    if weight_is_nan or not bool((torch.isfinite(scales) & (scales > 0)).all()):
        raise ConversionMismatchError(
            f"sparkdeploy: {entry.name} has no sound FP8 weight and scales: the checkpoint lacks "
            "them, or they are damaged"
        )


def take_own_parameters(layer: Module, entry: LedgerEntry) -> None:
    own = [getattr(layer, name).data for name in OWN_NAMES]
    if entry.checks_weights():
        difference = largest_difference(layer.weight.data, *own)
        if not difference <= LARGEST_DIFFERENCE:  # nor when it is not a number
            raise ConversionMismatchError(
                f"sparkdeploy: the prebuilt FP8 tensors of {entry.name} are not the layer's "
                f"weights (a block differs by {difference:.3f} of its norm); they are of another "
                "model, damaged, or were not loaded"
            )
    for name, own_name, value in zip(NAMES, OWN_NAMES, own, strict=True):
        delattr(layer, own_name)
        replace_parameter(layer, name, value)


def largest_difference(weight: Tensor, quantized: Tensor, scales: Tensor) -> float:
    """How far FP8 [N, K] is from `weight` in any block, as a part of its norm; may be no number."""
    exact = weight.float()
    error = dequantize_blocks(quantized, scales) - exact
    blocks = (weight.shape[0] // FP8_BLOCK, FP8_BLOCK, weight.shape[1] // FP8_BLOCK, FP8_BLOCK)
    squares = [part.view(blocks).square().sum(dim=(1, 3)) for part in (error, exact)]
    return float((squares[0] / squares[1].clamp_min(1e-12)).sqrt().max())
