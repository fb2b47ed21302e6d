"""FP8 tensors that the checkpoint brings, under whatever names: where they are loaded to."""

from typing import Any

import torch
from torch.nn import Module
from vllm.model_executor.layers.quantization.fp8 import Fp8Config, Fp8LinearMethod
from vllm.model_executor.parameter import BlockQuantScaleParameter, ModelWeightParameter

from sparkdeploy_vllm.fp8_books import LedgerEntry
from sparkdeploy_vllm.fp8_maths import FP8_DTYPE

BLOCK = (128, 128)
WEIGHT, SCALE = "weight", "weight_scale_inv"
_NOT_LOADED = float("nan")


class CheckpointKernelMethod(Fp8LinearMethod):
    """vLLM's own kernels for FP8 in blocks that need not be made, entered in the books."""

    def __init__(self, entry: LedgerEntry) -> None:
        super().__init__(
            Fp8Config(
                is_checkpoint_fp8_serialized=True,
                activation_scheme="dynamic",
                weight_block_size=list(BLOCK),
            )
        )
        self.entry = entry

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        """Create FP8 weight and scales as vLLM does, which chooses its kernel by them."""
        super().create_weights(layer, *weight_args, **extra_weight_attrs)
        self.entry.created()


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
