"""How a BF16 linear layer of the checkpoint becomes FP8 while it is loaded."""

from typing import Any

import torch
from torch.nn import Module, Parameter
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.platforms import current_platform

from sparkdeploy_vllm.announce import announce
from sparkdeploy_vllm.fp8_blocks import refuse_broken_blocks
from sparkdeploy_vllm.fp8_maths import FP8_DTYPE, fp8_block_linear, quantize_blocks
from sparkdeploy_vllm.ledger import ConversionLedger

try:
    from vllm.model_executor.layers.quantization.online.fp8 import Fp8PerBlockOnlineLinearMethod
except ImportError:  # vLLM older than 0.21
    Fp8PerBlockOnlineLinearMethod = None


def check_parts(
    name: str,
    input_size_per_partition: int,
    output_partition_sizes: list[int],
    input_size: int,
    output_size: int,
    *_: Any,
    **__: Any,
) -> None:
    """Refuse a rank's part that ends within a block; arguments as `create_weights` has them."""
    parted = (input_size_per_partition, sum(output_partition_sizes)) != (input_size, output_size)
    refuse_broken_blocks(
        name, rows=output_partition_sizes, columns=input_size_per_partition, is_parted=parted
    )


class LedgerEntry:
    """One layer's line in the books: created once, converted once."""

    def __init__(self, ledger: ConversionLedger, name: str, *, modules: int) -> None:
        self.ledger = ledger
        self.name = name
        self.modules = modules

    def created(self) -> None:
        """The layer exists."""
        self.ledger.layer_created(self.name)

    def converted(self, layer: Module) -> None:
        """Enter the layer if its weight really is FP8 now."""
        if layer.weight.dtype.itemsize == 1:
            self.ledger.fp8_converted(self.name, modules=self.modules, announce=announce)


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


if Fp8PerBlockOnlineLinearMethod is not None:

    class KernelFp8LinearMethod(Fp8PerBlockOnlineLinearMethod):
        """vLLM's own online per-block FP8 (CUTLASS on SM12x), entered in the books."""

        def __init__(self, entry: LedgerEntry) -> None:
            super().__init__()
            self.entry = entry

        def create_weights(
            self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any
        ) -> None:
            """Create the weight as vLLM does (on the meta device, filled while loading)."""
            check_parts(self.entry.name, *weight_args, **extra_weight_attrs)
            super().create_weights(layer, *weight_args, **extra_weight_attrs)
            self.entry.created()

        def process_weights_after_loading(self, layer: Module) -> None:
            """Quantise as vLLM does."""
            super().process_weights_after_loading(layer)
            self.entry.converted(layer)


def fp8_linear_method(entry: LedgerEntry) -> LinearMethodBase:
    """Return the method for this platform; ValueError when this vLLM has none for its GPU."""
    if current_platform.is_cpu():
        return ReferenceFp8LinearMethod(entry)
    if Fp8PerBlockOnlineLinearMethod is None:
        raise ValueError(
            "sparkdeploy: this vLLM has no online per-block FP8 (it came with 0.21); "
            "use a newer engine or a checkpoint with prebuilt FP8 tensors"
        )
    return KernelFp8LinearMethod(entry)


def replace_parameter(layer: Module, name: str, value: torch.Tensor) -> None:
    """Give `layer` a new parameter; a tensor shared with another layer is left as it is."""
    if hasattr(layer, name):
        delattr(layer, name)
    layer.register_parameter(name, Parameter(value, requires_grad=False))
