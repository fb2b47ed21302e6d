"""A draft layer's experts: INT4 on GPUs, in GPTQ's layout; on CPUs rounded to what INT4 holds.

Import this only where vLLM has both classes, from 0.25.1 on.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from vllm.model_executor.layers.fused_moe import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig, AutoGPTQMoEMethod
from vllm.model_executor.utils import set_weight_attrs

from sparkdeploy_vllm.drafts.layer import ExpertsEntry
from sparkdeploy_vllm.weights.conversion import INT4_GROUP
from sparkdeploy_vllm.weights.int4_groups import (
    BITS,
    dequantize_groups,
    pack_inputs,
    quantize_groups,
    refuse_damaged_scales,
)


class Int4ExpertsMethod(AutoGPTQMoEMethod):
    """vLLM's method for GPTQ's INT4 experts, which here are loaded at 16 bits and made INT4.

    It chooses the kernel, repacks for it and runs it, as for the experts of an INT4 checkpoint.
    Beside the 16-bit weights of the layer there is never more than their INT4.
    """

    def __init__(self, moe: Any, entry: ExpertsEntry) -> None:
        config = AutoGPTQConfig(
            weight_bits=BITS,
            group_size=INT4_GROUP,
            desc_act=False,
            is_sym=True,
            lm_head_quantized=False,
            dynamic={},
            full_config={},
        )
        super().__init__(config, moe)
        self.entry = entry
        self.sizes: tuple[Any, ...] = ()
        self.attributes: dict[str, Any] = {}

    def create_weights(
        self,
        layer: Module,
        num_experts: int,
        hidden_size: int,
        intermediate_size_per_partition: int,
        params_dtype: torch.dtype,
        **extra_weight_attrs: Any,
    ) -> None:
        """Register 16-bit `w13_weight` [E, 2 I, H] and `w2_weight` [E, H, I]."""
        inner = intermediate_size_per_partition
        self.sizes = (num_experts, hidden_size, inner, params_dtype)
        # vLLM before 0.30 passes the full size to its own class alone, by that class's name.
        self.attributes = {"intermediate_size_full": self.moe.intermediate_size}
        self.attributes |= extra_weight_attrs
        for name, shape in (("w13", (2 * inner, hidden_size)), ("w2", (hidden_size, inner))):
            weight = torch.empty(num_experts, *shape, dtype=params_dtype)
            parameter = Parameter(weight, requires_grad=False)
            layer.register_parameter(f"{name}_weight", parameter)
            set_weight_attrs(parameter, extra_weight_attrs)
        self.entry.created(layer)

    def process_weights_after_loading(self, layer: Module) -> None:
        if not self.sizes:  # processed twice
            return
        with torch.device(layer.w13_weight.device):
            super().create_weights(layer, *self.sizes, **self.attributes)
        for name in ("w13", "w2"):
            self._quantize(layer, name)
        self.sizes = ()
        super().process_weights_after_loading(layer)
        self.entry.converted()

    def _quantize(self, layer: Module, name: str) -> None:
        """Fill a matrix's INT4 parameters, expert by expert, and let its 16 bits go."""
        weight: Tensor = getattr(layer, f"{name}_weight").data
        packed, scales = (getattr(layer, f"{name}_{part}").data for part in ("qweight", "scales"))
        for index, expert in enumerate(weight):
            codes, steps = quantize_groups(expert)
            packed[index] = pack_inputs(codes)
            scales[index] = steps.t()
        refuse_damaged_scales(self.entry.name, scales)
        # A symmetric kernel reads none, and some releases repack them all the same.
        getattr(layer, f"{name}_qzeros").data.zero_()
        delattr(layer, f"{name}_weight")


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
        for weight in (*layer.w13_weight.data, *layer.w2_weight.data):
            codes, scales = quantize_groups(weight)
            refuse_damaged_scales(self.entry.name, scales)
            weight.copy_(dequantize_groups(codes, scales))
        self.is_rounded = True
        super().process_weights_after_loading(layer)
        self.entry.converted()
