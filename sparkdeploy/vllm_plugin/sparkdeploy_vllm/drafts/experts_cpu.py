"""A draft layer's experts on CPUs: rounded to what INT4 can hold, and run as they always are."""

from typing import Any

from torch import Tensor
from torch.nn import Module
from vllm.model_executor.layers.fused_moe import UnquantizedFusedMoEMethod

from sparkdeploy_vllm.drafts.layer import ExpertsEntry
from sparkdeploy_vllm.weights.int4_groups import (
    dequantize_groups,
    quantize_groups,
    refuse_damaged_scales,
)


class RoundedExpertsMethod(UnquantizedFusedMoEMethod):
    """vLLM's own method for 16 bits, over values that are INT4's."""

    def __init__(self, moe: Any, entry: ExpertsEntry) -> None:
        super().__init__(moe)
        self.entry = entry
        self.is_rounded = False

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        super().create_weights(layer, *weight_args, **extra_weight_attrs)
        self.entry.created(layer)

    def process_weights_after_loading(self, layer: Module) -> None:
        if self.is_rounded:  # processed twice
            return
        for weight in (layer.w13_weight, layer.w2_weight):
            self._round(weight.data)
        self.is_rounded = True
        super().process_weights_after_loading(layer)
        self.entry.converted()

    def _round(self, experts: Tensor) -> None:
        """Round [E, N, K] in its place."""
        for weight in experts:
            codes, scales = quantize_groups(weight)
            refuse_damaged_scales(self.entry.name, scales)
            weight.copy_(dequantize_groups(codes, scales))
