"""FP8 tensors that the checkpoint brings: compared with the BF16 ones, then in their place."""

from typing import Any

import torch
from torch.nn import Module
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod
from vllm.model_executor.parameter import BlockQuantScaleParameter, ModelWeightParameter
from vllm.platforms import current_platform

from sparkdeploy_vllm.fp8_linear import LedgerEntry, ReferenceFp8LinearMethod, replace_parameter
from sparkdeploy_vllm.fp8_maths import FP8_DTYPE, dequantize_blocks
from sparkdeploy_vllm.ledger import ConversionMismatchError

BLOCK = (128, 128)
OWN_WEIGHT, OWN_SCALE = "fp8_weight", "fp8_scale_inv"
"""What the tensors are called beside the `weight` of the untouched download."""
OWN_NAMES = (OWN_WEIGHT, OWN_SCALE)
LARGEST_DIFFERENCE = 0.1
"""Of a block's norm. Rounding to e4m3 costs 0.03; another tensor, or none, 1 and more."""
_NOT_LOADED = float("nan")


class PrebuiltReferenceMethod(ReferenceFp8LinearMethod):
    """The plain torch path with the checkpoint's own FP8 tensors."""

    def create_weights(
        self,
        layer: Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        *sizes: Any,
        **extra_weight_attrs: Any,
    ) -> None:
        """Create the BF16 weight, and the FP8 weight and its scales beside it."""
        weight_loader = extra_weight_attrs["weight_loader"]
        add_fp8_parameters(
            layer, OWN_NAMES, input_size_per_partition, output_partition_sizes, weight_loader
        )
        super().create_weights(
            layer, input_size_per_partition, output_partition_sizes, *sizes, **extra_weight_attrs
        )

    def process_weights_after_loading(self, layer: Module) -> None:
        """Put the FP8 tensors in the place of the BF16 weight, which is freed; once per load."""
        if layer.weight.dtype == FP8_DTYPE:
            return
        take_own_parameters(layer, self.entry.name)
        self.entry.converted(layer)


class PrebuiltKernelMethod(Fp8LinearMethod):
    """vLLM's own kernels for FP8 in blocks with the checkpoint's own FP8 tensors."""

    def __init__(self, entry: LedgerEntry) -> None:
        super().__init__(serialized_config())
        self.entry = entry
        self.plain = UnquantizedLinearMethod()

    def create_weights(
        self,
        layer: Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        *sizes: Any,
        **extra_weight_attrs: Any,
    ) -> None:
        """Let vLLM choose its kernel by the FP8 weight, then make room for the BF16 one too."""
        arguments = (layer, input_size_per_partition, output_partition_sizes, *sizes)
        super().create_weights(*arguments, **extra_weight_attrs)
        del layer.weight, layer.weight_scale_inv
        weight_loader = extra_weight_attrs["weight_loader"]
        add_fp8_parameters(
            layer, OWN_NAMES, input_size_per_partition, output_partition_sizes, weight_loader
        )
        self.plain.create_weights(*arguments, **extra_weight_attrs)
        self.entry.created()

    def process_weights_after_loading(self, layer: Module) -> None:
        """Put the FP8 tensors in the place of the BF16 weight; then what vLLM does with them."""
        if getattr(layer, OWN_WEIGHT, None) is None:
            return
        take_own_parameters(layer, self.entry.name)
        self.entry.converted(layer)
        super().process_weights_after_loading(layer)


def prebuilt_linear_method(entry: LedgerEntry) -> LinearMethodBase:
    """Return the method for this platform."""
    if current_platform.is_cpu():
        return PrebuiltReferenceMethod(entry)
    return PrebuiltKernelMethod(entry)


def serialized_config() -> Fp8Config:
    """Return vLLM's FP8 config for weights that the checkpoint brings in blocks."""
    return Fp8Config(
        is_checkpoint_fp8_serialized=True,
        activation_scheme="dynamic",
        weight_block_size=list(BLOCK),
    )


def add_fp8_parameters(
    layer: Module,
    names: tuple[str, str],
    columns: int,
    row_partitions: list[int],
    weight_loader: Any,
) -> None:
    """Register FP8 weight [N, K] and FP32 scales [N / 128, K / 128], all not-a-number till loaded.

    ValueError when a partition (a tensor-parallel rank's, or one of a fused layer's) ends within
    a block: the blocks of its neighbour would be scaled by the wrong scales.
    """
    if columns % BLOCK[1] or any(rows % BLOCK[0] for rows in row_partitions):
        raise ValueError(
            f"sparkdeploy: FP8 blocks of {BLOCK} do not divide {row_partitions} x {columns}; "
            "use fewer tensor-parallel ranks, or fp8_dense mode online"
        )
    rows = sum(row_partitions)
    weight = torch.full((rows, columns), _NOT_LOADED).to(FP8_DTYPE)
    # Torch's default is the model's dtype now, and the kernels take FP32 alone.
    blocks = (rows // BLOCK[0], columns // BLOCK[1])
    scales = torch.full(blocks, _NOT_LOADED, dtype=torch.float32)
    places = {"input_dim": 1, "output_dim": 0, "weight_loader": weight_loader}
    layer.weight_block_size = list(BLOCK)
    layer.register_parameter(names[0], ModelWeightParameter(data=weight, **places))
    layer.register_parameter(names[1], BlockQuantScaleParameter(data=scales, **places))


def take_own_parameters(layer: Module, name: str) -> None:
    """Make the FP8 tensors `weight` and `weight_scale_inv`, and free the BF16 weight.

    Raises ConversionMismatchError when they were not loaded or are not this layer's weights.
    """
    quantized, scales = getattr(layer, OWN_WEIGHT).data, getattr(layer, OWN_SCALE).data
    difference = largest_difference(layer.weight.data, quantized, scales)
    if not difference <= LARGEST_DIFFERENCE:
        raise ConversionMismatchError(
            f"sparkdeploy: the prebuilt FP8 tensors of {name} are not the layer's weights "
            f"(a block differs by {difference:.3f} of its norm); they are of another model, "
            "damaged, or were not loaded"
        )
    delattr(layer, OWN_WEIGHT)
    delattr(layer, OWN_SCALE)
    replace_parameter(layer, "weight", quantized)
    replace_parameter(layer, "weight_scale_inv", scales)


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
