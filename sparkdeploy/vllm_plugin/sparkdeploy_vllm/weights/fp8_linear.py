"""How a BF16 linear layer of the checkpoint becomes FP8 while it is loaded, and who counts it."""

from typing import Any

from torch import Tensor
from torch.nn import Module, Parameter
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.platforms import current_platform

from sparkdeploy_vllm.announce import announce, warn_once
from sparkdeploy_vllm.weights.conversion import FP8_BLOCK, refuse_broken_blocks
from sparkdeploy_vllm.weights.ledger import ConversionLedger, LayerLedger
from sparkdeploy_vllm.weights.reference import (
    FP8_BLOCKS,
    FP8_DTYPE,
    fp8_block_linear,
    quantize_blocks,
)

try:
    from vllm.model_executor.layers.quantization.online import fp8 as online
except ImportError:  # vLLM older than 0.20.2
    online = None


class LedgerEntry:
    def __init__(self, ledger: LayerLedger, name: str, *, modules: int) -> None:
        self.ledger = ledger
        self.name = name
        self.modules = modules
        self.is_made_up = get_current_vllm_config().load_config.load_format == "dummy"
        """Whether no weights are loaded, so that those of a checkpoint cannot be looked for."""

    def checks_weights(self) -> bool:
        if self.is_made_up:
            warn_once("sparkdeploy: load_format is dummy: FP8 weights are made up, not checked")
        return not self.is_made_up

    def check_parts(
        self,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        *_: Any,
        **__: Any,
    ) -> None:
        """Raise ValueError where a rank's part ends in a block; arguments of `create_weights`."""
        part = (input_size_per_partition, sum(output_partition_sizes))
        is_parted = part != (input_size, output_size)
        rows, columns = output_partition_sizes, input_size_per_partition
        refuse_broken_blocks(self.name, rows=rows, columns=columns, is_parted=is_parted)

    def created(self) -> None:
        self.ledger.layer_created(self.name)

    def converted(self, layer: Module) -> None:
        if layer.weight.dtype.itemsize == 1:
            self.ledger.fp8_converted(self.name, modules=self.modules, announce=announce)

    def int4_converted(self) -> None:
        self.ledger.int4_converted(self.name, modules=self.modules, announce=announce)


def keep_books(
    method: LinearMethodBase, entry: LedgerEntry, *, checks_parts: bool = True
) -> LinearMethodBase:
    """Return vLLM's method for one layer, which now also enters that layer in our books.

    Nothing is derived from its class, as vLLM chooses that and asks for it in several places
    (loading layer by layer, timing, kernels).
    """
    create, process = method.create_weights, method.process_weights_after_loading

    def create_weights(layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        if checks_parts:
            entry.check_parts(*weight_args, **extra_weight_attrs)
        create(layer, *weight_args, **extra_weight_attrs)
        entry.created()

    def process_weights_after_loading(layer: Module) -> None:
        process(layer)
        entry.converted(layer)

    method.create_weights = create_weights
    method.process_weights_after_loading = process_weights_after_loading
    return method


def tell_when_weights_are_there(method: Any, ledger: ConversionLedger) -> Any:
    """Return a method of vLLM's for a layer that is none of ours, which closes unused books."""
    if "process_weights_after_loading" in vars(method):  # one instance for several layers
        return method
    process = method.process_weights_after_loading

    def process_weights_after_loading(layer: Module) -> None:
        ledger.weights_there(announce=announce)
        process(layer)

    method.process_weights_after_loading = process_weights_after_loading
    return method


class ReferenceFp8LinearMethod(LinearMethodBase):
    """FP8 in plain torch, for machines without FP8 kernels (rehearsals, tests).

    Per block, or per output: then activations have one scale a token.
    """

    def __init__(self, entry: LedgerEntry, *, per_block: bool = True) -> None:
        self.entry, self.per_block = entry, per_block
        self.plain = UnquantizedLinearMethod()

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        if self.per_block:
            self.entry.check_parts(*weight_args, **extra_weight_attrs)
        self.plain.create_weights(layer, *weight_args, **extra_weight_attrs)
        self.entry.created()

    def process_weights_after_loading(self, layer: Module) -> None:
        """Replace `weight` by e4m3 [N, K] plus FP32 `weight_scale_inv`, once per load."""
        if layer.weight.dtype == FP8_DTYPE:
            return
        blocks = FP8_BLOCKS if self.per_block else (1, layer.weight.shape[1])
        quantized, scales = quantize_blocks(layer.weight.data, blocks)
        replace_parameter(layer, "weight", quantized)
        replace_parameter(layer, "weight_scale_inv", scales)
        self.entry.converted(layer)

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return fp8_block_linear(x, layer.weight, layer.weight_scale_inv, bias)


class DenseFp8Method(LinearMethodBase):
    """Makes a layer FP8 in blocks where a rank's part is whole blocks, and else per output.

    Which it is shows when the layer is created. From then on the layer has another method.
    """

    def __init__(self, entry: LedgerEntry) -> None:
        self.entry = entry

    def create_weights(
        self,
        layer: Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        *weight_args: Any,
        **extra_weight_attrs: Any,
    ) -> None:
        sizes = (input_size_per_partition, *output_partition_sizes)
        per_block = not any(size % FP8_BLOCK for size in sizes)
        layer.quant_method = fp8_linear_method(self.entry, per_block=per_block)
        layer.quant_method.create_weights(
            layer,
            input_size_per_partition,
            output_partition_sizes,
            *weight_args,
            **extra_weight_attrs,
        )

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        raise NotImplementedError("sparkdeploy: this layer was never created")


def fp8_linear_method(entry: LedgerEntry, *, per_block: bool = True) -> LinearMethodBase:
    """On GPUs vLLM's own (CUTLASS on SM12x), for releases that cannot be told the layers; on CPUs
    ours, as vLLM's kernels for them need AMX and leave the activations BF16.
    """
    if current_platform.is_cpu():
        return ReferenceFp8LinearMethod(entry, per_block=per_block)
    name = "Fp8PerBlockOnlineLinearMethod" if per_block else "Fp8PtpcOnlineLinearMethod"
    theirs = getattr(online, name, None)
    if theirs is None:
        raise ValueError(
            f"sparkdeploy: this vLLM has no online FP8 for {entry.name} ({name}); "
            "use a newer engine, or set checkpoint.fp8_dense.mode to off or prebuilt"
        )
    return keep_books(theirs(), entry, checks_parts=per_block)


def replace_parameter(layer: Module, name: str, value: Tensor) -> None:
    """Give `layer` a new parameter; a tensor shared with another layer is left as it is."""
    if hasattr(layer, name):
        delattr(layer, name)
    layer.register_parameter(name, Parameter(value, requires_grad=False))
