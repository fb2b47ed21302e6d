"""Shared experts that become INT4 while they are loaded, in GPTQ's layout, for vLLM's kernel."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from vllm.model_executor.layers.linear import LinearMethodBase, UnquantizedLinearMethod

from sparkdeploy_vllm.weights.conversion import INT4_GROUP, refuse_broken_groups
from sparkdeploy_vllm.weights.fp8_linear import LedgerEntry
from sparkdeploy_vllm.weights.int4_groups import fit_groups, pack_inputs, refuse_damaged_scales
from sparkdeploy_vllm.weights.ledger import ConversionMismatchError
from sparkdeploy_vllm.weights.reference import NOT_LOADED

SYMMETRIC_ZEROS = 0x77777777
"""Eight zero points of 8, each stored less one: what GPTQ's files of symmetric weights have."""


class Int4SharedExpertMethod(LinearMethodBase):
    """A linear layer that is loaded at 16 bits, and run as one of an INT4 checkpoint.

    `packed` is vLLM's method for a layer of the checkpoint's own format: it chooses the kernel,
    repacks for it and runs it, on GPUs and CPUs. A group never crosses ranks, so each rank's values
    are those of the whole layer.
    """

    def __init__(self, packed: Any, entry: LedgerEntry) -> None:
        if not hasattr(packed, "create_weights"):
            raise ValueError(
                f"sparkdeploy: this vLLM has no INT4 kernel for {entry.name}; use a newer engine, "
                "or set checkpoint.shared_experts to bf16"
            )
        self.packed, self.entry = packed, entry
        self.sizes: tuple[Any, ...] = ()
        """Inputs, outputs, and those of the whole layer; none once it is INT4."""

    def create_weights(
        self,
        layer: Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register a 16-bit `weight` [N, K], no number until it is loaded."""
        columns = input_size_per_partition
        refuse_broken_groups(self.entry.name, columns, INT4_GROUP, setting="shared_experts")
        self.sizes = (columns, output_partition_sizes, input_size, output_size)
        plain = UnquantizedLinearMethod()
        plain.create_weights(layer, *self.sizes, params_dtype, **extra_weight_attrs)
        layer.weight.data.fill_(NOT_LOADED)
        self.entry.created()

    def process_weights_after_loading(self, layer: Module) -> None:
        if not self.sizes:  # processed twice
            return
        weight = layer.weight.data
        loads = {"params_dtype": weight.dtype, "weight_loader": _loaded_here}
        with torch.device(weight.device):
            self.packed.create_weights(layer, *self.sizes, **loads)
        self._fill(layer, weight)
        self.sizes = ()
        del layer.weight
        self.packed.process_weights_after_loading(layer)
        self.entry.int4_converted()

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.packed.apply(layer, x, bias)

    def _fill(self, layer: Module, weight: Tensor) -> None:
        codes, scales = fit_groups(weight)
        refuse_damaged_scales(self.entry.name, scales)
        layer.qweight.data.copy_(pack_inputs(codes))
        layer.scales.data.copy_(scales.t())
        layer.qzeros.data.fill_(SYMMETRIC_ZEROS)
        if hasattr(layer, "g_idx"):  # as in 0.25.1
            inputs = torch.arange(weight.shape[1], device=weight.device)
            layer.g_idx.data.copy_(inputs // INT4_GROUP)


def _loaded_here(*_: Any, **__: Any) -> None:
    """Stand where vLLM's parameters want a loader; ours are filled by hand."""
    raise ConversionMismatchError("sparkdeploy: shared experts that are INT4 cannot be loaded anew")
