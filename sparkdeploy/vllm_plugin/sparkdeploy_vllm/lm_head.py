"""Quantisation methods of the LM head: INT8, and BF16 that only reports itself."""

from typing import Any

import torch
from torch.nn import Module
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from sparkdeploy_vllm.announce import announce, announce_once, warn_once
from sparkdeploy_vllm.fp8_linear import replace_parameter
from sparkdeploy_vllm.int8_maths import dequantize_gather, int8_linear, quantize_rows
from sparkdeploy_vllm.ledger import ConversionLedger


def int8_logits(layer: Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Logits [..., V] of a layer whose `weight` [V, K] is int8, by the kernel where it fits."""
    if x.is_cuda:
        from sparkdeploy_vllm.kernels import int8_head  # needs Triton

        if int8_head.fits(x, layer.weight):
            return int8_head.int8_head(x, layer.weight, layer.weight_scale, bias)
    return int8_linear(x, layer.weight, layer.weight_scale, bias)


def warm_up(layer: Module) -> None:
    """Choose the kernels' tiles for an int8 layer and compile them, and say which in the log.

    Now, because nothing may be read or compiled while vLLM captures CUDA graphs.
    """
    if not layer.weight.is_cuda:
        return
    from sparkdeploy_vllm.kernels import int8_head  # needs Triton

    choice = int8_head.prepare(layer.weight, layer.weight_scale, layer.params_dtype)
    if choice is None:
        return
    if choice.ignored:
        warn_once(f"sparkdeploy: {choice.ignored}")
    announce_once(choice.line)


class Int8LMHeadMethod(QuantizeMethodBase):
    """INT8 rows with FP32 scales; sharding, padding and gathering stay vLLM's.

    Converts while weights are processed, before memory is profiled. `weight` stays the name of
    the (now int8) matrix; a matrix shared with the embedding is copied, never overwritten. A
    draft model that shares the target's head module shares the INT8 copy.
    """

    def __init__(self, ledger: ConversionLedger, name: str) -> None:
        self.ledger = ledger
        self.name = name
        self.plain = UnquantizedEmbeddingMethod()

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        """Create the BF16 matrix exactly as an unquantised head does."""
        self.plain.create_weights(layer, *weight_args, **extra_weight_attrs)
        self.ledger.layer_created(self.name)

    def process_weights_after_loading(self, layer: Module) -> None:
        """Replace `weight` by int8 [V, K] plus FP32 `weight_scale` [V], once per load."""
        if layer.weight.dtype == torch.int8:
            return
        quantized, scales = quantize_rows(layer.weight.data)
        replace_parameter(layer, "weight", quantized)
        replace_parameter(layer, "weight_scale", scales)
        warm_up(layer)
        self.ledger.head_ready(
            self.name, is_int8=layer.weight.dtype == torch.int8, announce=announce
        )

    def apply(
        self, layer: Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits [..., V] of hidden states [..., K], in the dtype of `x`."""
        return int8_logits(layer, x, bias)

    def embedding(self, layer: Module, input_: torch.Tensor) -> torch.Tensor:
        """Rows of the matrix in the layer's dtype, dequantised once it is INT8."""
        if layer.weight.dtype != torch.int8:
            return self.plain.embedding(layer, input_)
        return dequantize_gather(input_, layer.weight, layer.weight_scale, layer.params_dtype)


class ReportingLMHeadMethod(UnquantizedEmbeddingMethod):
    """vLLM's plain head; tells the books when it is ready so that they can be closed."""

    def __init__(self, ledger: ConversionLedger, name: str) -> None:
        super().__init__()
        self.ledger = ledger
        self.name = name

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        """As vLLM."""
        super().create_weights(layer, *weight_args, **extra_weight_attrs)
        self.ledger.layer_created(self.name)

    def process_weights_after_loading(self, layer: Module) -> None:
        """As vLLM."""
        super().process_weights_after_loading(layer)
        self.ledger.head_ready(self.name, is_int8=False, announce=announce)
