"""A draft model's own LM head: the rows of frequent tokens only, INT8."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from vllm.config import get_current_vllm_config, get_current_vllm_config_or_none
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from sparkdeploy_vllm.announce import announce
from sparkdeploy_vllm.fp8_linear import replace_parameter
from sparkdeploy_vllm.lm_head import int8_logits, logits_dtype, make_int8
from sparkdeploy_vllm.treatment import DraftHead

NEVER = float("-inf")
"""The logit of a token that is not drafted."""


class DraftHeadMethod(QuantizeMethodBase):
    """INT8 rows of the draft's frequent tokens; every other token's logit is minus infinity.

    The result has the shape of the whole head's, so that gathering over ranks, padding and
    sampling stay vLLM's. Only what is proposed changes: the target verifies with its own head.
    """

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.plain = UnquantizedEmbeddingMethod()

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        self.plain.create_weights(layer, *weight_args, **extra_weight_attrs)
        layer.logits_dtype = logits_dtype(layer.weight.dtype)

    def process_weights_after_loading(self, layer: Module) -> None:
        """Keep this rank's frequent rows: int8 [F, K], FP32 `weight_scale` [F], `rows` [F]."""
        if layer.weight.dtype == torch.int8:
            return
        shard = layer.shard_indices
        first, end = shard.org_vocab_start_index, shard.org_vocab_end_index
        rows = self.tokens[(self.tokens >= first) & (self.tokens < end)] - first
        rows = rows.to(layer.weight.device)
        layer.all_rows = layer.weight.shape[0]
        make_int8(layer, layer.weight.data[rows])
        replace_parameter(layer, "rows", rows)
        announce(f"sparkdeploy: draft head active: rows={len(self.tokens)}")

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        drafted = int8_logits(layer, x, None if bias is None else bias[layer.rows])
        logits = drafted.new_full((*x.shape[:-1], layer.all_rows), NEVER)
        return logits.index_copy_(-1, layer.rows, drafted)

    def embedding(self, layer: Module, input_: Tensor) -> Tensor:
        raise NotImplementedError("sparkdeploy: a draft head embeds nothing")


class SparkLogitsProcessor(LogitsProcessor):
    """vLLM's, except that a draft model with a head of its own keeps it.

    vLLM gives every MTP draft the target's head once both are loaded. The draft's processor is
    made right after its head, and remembers that one.

    No zero-argument super(): LoRA's wrapper calls the methods of a processor's class with itself
    in the place of the processor, and is no subclass.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = getattr(get_current_vllm_config_or_none(), "quant_config", None)
        head = getattr(config, "draft_head", None)
        # Not a child: vLLM moves, names and counts the parameters of children.
        self.own_head = () if head is None else (head,)

    def forward(self, lm_head: Module, *args: Any, **kwargs: Any) -> Any:
        return LogitsProcessor.forward(self, chosen_head(self, lm_head), *args, **kwargs)

    def get_top_tokens(self, lm_head: Module, *args: Any, **kwargs: Any) -> Any:
        return LogitsProcessor.get_top_tokens(self, chosen_head(self, lm_head), *args, **kwargs)

    def get_top_k_tokens(self, lm_head: Module, *args: Any, **kwargs: Any) -> Any:
        # vLLM has it since 0.29, and asks for it nowhere before.
        return LogitsProcessor.get_top_k_tokens(self, chosen_head(self, lm_head), *args, **kwargs)


def chosen_head(processor: Module, lm_head: Module) -> Module:
    own = getattr(processor, "own_head", ())
    return own[0] if own else lm_head


def draft_head_method(wanted: DraftHead, vocabulary: int) -> DraftHeadMethod:
    """Read the frequent tokens that lie beside the checkpoint's config.json."""
    model_config = get_current_vllm_config().model_config
    if model_config.enable_sleep_mode:
        # Level 2 gives the weights' memory away, and vLLM reloads the target's weights only: which
        # rows the draft head has would be whatever lies there then.
        raise ValueError(
            "sparkdeploy: a server with --enable-sleep-mode cannot have a draft head: vLLM does "
            "not load it again after a sleep. Remove the flag, or checkpoint.draft_lm_head"
        )
    folder = Path(model_config.model)
    content = json.loads((folder / wanted.file).read_text(encoding="utf-8"))
    tokens = sorted(set(content["tokens"]))
    if len(tokens) != wanted.rows or not 0 <= tokens[0] <= tokens[-1] < vocabulary:
        raise ValueError(
            f"sparkdeploy: {wanted.file} has {len(tokens)} tokens up to {tokens[-1]}, expected "
            f"{wanted.rows} of a vocabulary of {vocabulary}"
        )
    return DraftHeadMethod(torch.tensor(tokens))
