"""How a BF16 linear layer of the checkpoint becomes FP8 while it is loaded, and who counts it."""

from typing import Any

from torch import Tensor
from torch.nn import Module, Parameter
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod
from vllm.platforms import current_platform

from sparkdeploy_vllm.announce import announce, warn_once
from sparkdeploy_vllm.weights.conversion import refuse_broken_blocks
from sparkdeploy_vllm.weights.ledger import ConversionLedger, LayerLedger
from sparkdeploy_vllm.weights.reference import FP8_DTYPE, fp8_block_linear, quantize_blocks

try:
    from vllm.model_executor.layers.quantization.online.fp8 import Fp8PerBlockOnlineLinearMethod
except ImportError:  # vLLM older than 0.20.2
    Fp8PerBlockOnlineLinearMethod = None


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


def keep_books(method: LinearMethodBase, entry: LedgerEntry) -> LinearMethodBase:
    """Return vLLM's method for one layer, which now also enters that layer in our books.

    Nothing is derived from its class, as vLLM chooses that and asks for it in several places
    (loading layer by layer, timing, kernels).
    """
    create, process = method.create_weights, method.process_weights_after_loading

    def create_weights(layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
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
    """FP8 in plain torch, for machines without FP8 kernels (rehearsals, tests)."""

    def __init__(self, entry: LedgerEntry) -> None:
        self.entry = entry
        self.plain = UnquantizedLinearMethod()

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        self.entry.check_parts(*weight_args, **extra_weight_attrs)
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

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return fp8_block_linear(x, layer.weight, layer.weight_scale_inv, bias)


def fp8_linear_method(entry: LedgerEntry) -> LinearMethodBase:
    """On GPUs vLLM's own (CUTLASS on SM12x), for releases that cannot be told the layers; on CPUs
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


def replace_parameter(layer: Module, name: str, value: Tensor) -> None:
    """Give `layer` a new parameter; a tensor shared with another layer is left as it is."""
    if hasattr(layer, name):
        delattr(layer, name)
    layer.register_parameter(name, Parameter(value, requires_grad=False))
