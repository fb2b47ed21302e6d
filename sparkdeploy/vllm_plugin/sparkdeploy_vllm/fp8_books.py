"""One FP8 layer's line in the books, also for layers whose method is vLLM's own."""

from typing import Any

from torch.nn import Module
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.linear import LinearMethodBase

from sparkdeploy_vllm.announce import announce, warn_once
from sparkdeploy_vllm.fp8_blocks import refuse_broken_blocks
from sparkdeploy_vllm.ledger import ConversionLedger


class LedgerEntry:
    """One layer's line in the books: created once, converted once."""

    def __init__(self, ledger: ConversionLedger, name: str, *, modules: int) -> None:
        self.ledger = ledger
        self.name = name
        self.modules = modules
        self.is_made_up = get_current_vllm_config().load_config.load_format == "dummy"
        """Whether no weights are loaded, so that those of a checkpoint cannot be looked for."""

    def checks_weights(self) -> bool:
        """Whether there is a checkpoint's content to check; says it in the log when not."""
        if self.is_made_up:
            warn_once("sparkdeploy: load_format is dummy: FP8 weights are made up, not checked")
        return not self.is_made_up

    def created(self) -> None:
        """The layer exists."""
        self.ledger.layer_created(self.name)

    def converted(self, layer: Module) -> None:
        """Enter the layer if its weight really is FP8 now."""
        if layer.weight.dtype.itemsize == 1:
            self.ledger.fp8_converted(self.name, modules=self.modules, announce=announce)


def keep_books(method: LinearMethodBase, entry: LedgerEntry) -> LinearMethodBase:
    """Return vLLM's method for one layer, which now also enters that layer in our books.

    Nothing is derived from its class, as vLLM chooses that and asks for it in several places
    (loading layer by layer, timing, kernels).
    """
    create, process = method.create_weights, method.process_weights_after_loading

    def create_weights(layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        check_parts(entry.name, *weight_args, **extra_weight_attrs)
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
    process = method.process_weights_after_loading
    if "process_weights_after_loading" in vars(method):  # one instance for several layers
        return method

    def process_weights_after_loading(layer: Module) -> None:
        ledger.weights_there(announce=announce)
        process(layer)

    method.process_weights_after_loading = process_weights_after_loading
    return method


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
