"""The LM head: as integers, as BF16 that only reports itself, and the layer that vLLM makes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor import custom_op
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
)

from sparkdeploy_vllm.announce import announce, announce_choice
from sparkdeploy_vllm.head.int4_reference import gather_rows, int4_linear, quantize_head
from sparkdeploy_vllm.weights.conversion import INT4_GROUP, refuse_broken_groups
from sparkdeploy_vllm.weights.fp8_linear import replace_parameter
from sparkdeploy_vllm.weights.ledger import ConversionLedger
from sparkdeploy_vllm.weights.reference import dequantize_gather, int8_linear, quantize_rows


def logits_dtype(model_dtype: torch.dtype) -> torch.dtype:
    """The dtype of an integer head's logits: FP32, which is what they are summed in.

    The model's own where drafts are drawn by chance: vLLM keeps such drafts' logits in a buffer of
    the model's dtype and asserts that they come in it (`gumbel_sample` of 0.33), and a draft may
    share the target's head. Asks vLLM's current config, so call it while a layer is made.
    """
    speculation = getattr(get_current_vllm_config_or_none(), "speculative_config", None)
    if getattr(speculation, "draft_sample_method", "greedy") == "greedy":
        return torch.float32
    return model_dtype


@dataclass(frozen=True, slots=True)
class HeadForm:
    """What integers a head becomes, and how they are used where no kernel of ours runs."""

    dtype: torch.dtype
    quantize: Callable[[Tensor], tuple[Tensor, Tensor]]
    """From a 16-bit [V, K] to the matrix and its scales."""
    linear: Callable[..., Tensor]
    gather: Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor]
    group: int = 1
    """Inputs that share a scale; a head's hidden size must be a multiple."""


HEAD_FORMS = {
    "int8": HeadForm(torch.int8, quantize_rows, int8_linear, dequantize_gather),
    "int4": HeadForm(torch.uint8, quantize_head, int4_linear, gather_rows, group=INT4_GROUP),
}
_FORM_OF = {form.dtype: form for form in HEAD_FORMS.values()}


def integer_logits(layer: Module, x: Tensor, bias: Tensor | None) -> Tensor:
    """Logits [..., V] of a layer whose `weight` is of integers, by the kernel where it fits."""
    out_dtype = layer.logits_dtype
    if x.is_cuda:
        from sparkdeploy_vllm.head.kernel import fits, head_logits  # needs Triton

        if fits(x, layer.weight):
            return head_logits(x, layer.weight, layer.weight_scale, bias, out_dtype=out_dtype)
    linear = _FORM_OF[layer.weight.dtype].linear
    return linear(x, layer.weight, layer.weight_scale, bias, out_dtype=out_dtype)


def warm_up(layer: Module) -> None:
    """Choose tiles and compile them: while vLLM captures CUDA graphs it would be too late."""
    if not layer.weight.is_cuda:
        return
    from sparkdeploy_vllm.head.kernel import prepare  # needs Triton

    choice = prepare(
        layer.weight, layer.weight_scale, layer.params_dtype, out_dtype=layer.logits_dtype
    )
    if choice is not None:
        announce_choice(choice)


class IntegerLMHeadMethod(QuantizeMethodBase):
    """A head of INT8 or INT4; sharding, padding and gathering stay vLLM's.

    Converts while weights are processed, before memory is profiled. `weight` stays the name of
    the (now integer) matrix; a matrix shared with the embedding is copied, never overwritten. A
    draft model that shares the target's head module shares the integers.
    """

    def __init__(self, dtype: str, ledger: ConversionLedger, name: str) -> None:
        self.dtype, self.form = dtype, HEAD_FORMS[dtype]
        self.ledger = ledger
        self.name = name
        self.plain = UnquantizedEmbeddingMethod()

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        self.plain.create_weights(layer, *weight_args, **extra_weight_attrs)
        refuse_broken_groups(self.name, layer.weight.shape[1], self.form.group, setting="lm_head")
        layer.logits_dtype = logits_dtype(layer.weight.dtype)
        self.ledger.layer_created(self.name)

    def process_weights_after_loading(self, layer: Module) -> None:
        if not layer.weight.dtype.is_floating_point:  # processed twice
            return
        quantized, scales = self.form.quantize(layer.weight.data)
        replace_parameter(layer, "weight", quantized)
        replace_parameter(layer, "weight_scale", scales)
        warm_up(layer)
        self.ledger.head_ready(self.name, dtype=self.dtype, announce=announce)

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return integer_logits(layer, x, bias)

    def embedding(self, layer: Module, input_: Tensor) -> Tensor:
        if layer.weight.dtype.is_floating_point:
            return self.plain.embedding(layer, input_)
        return self.form.gather(input_, layer.weight, layer.weight_scale, layer.params_dtype)


class ReportingLMHeadMethod(UnquantizedEmbeddingMethod):
    """vLLM's plain head; tells the books when it is ready so that they can be closed."""

    def __init__(self, ledger: ConversionLedger, name: str) -> None:
        super().__init__()
        self.ledger = ledger
        self.name = name

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        super().create_weights(layer, *weight_args, **extra_weight_attrs)
        self.ledger.layer_created(self.name)

    def process_weights_after_loading(self, layer: Module) -> None:
        super().process_weights_after_loading(layer)
        self.ledger.head_ready(self.name, dtype="bf16", announce=announce)


class SparkLMHead(ParallelLMHead):
    """vLLM's head with the quantisation config that some models forget to pass.

    Qwen3.5 does before vLLM 0.23; Qwen3-Next and others do up to 0.33.

    Once made it is vLLM's own class, also for the models that are none of ours.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = getattr(get_current_vllm_config_or_none(), "quant_config", None)
        if hasattr(config, "conversion"):
            kwargs.setdefault("quant_config", config)
        super().__init__(*args, **kwargs)
        self.__class__ = ParallelLMHead


def replace_layer(original: type, ours: type) -> None:
    """Make vLLM build `ours`, a subclass, wherever it asks for `original` from now on."""
    if original.__name__ not in custom_op.op_registry_oot:
        original.register_oot(name=original.__name__)(ours)  # type: ignore[attr-defined]
