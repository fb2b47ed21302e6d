"""A draft model's own LM head: the rows of frequent tokens only, INT8."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from vllm.config import get_current_vllm_config, get_current_vllm_config_or_none
from vllm.distributed import tensor_model_parallel_all_gather
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from sparkdeploy_vllm.announce import announce
from sparkdeploy_vllm.head import dealt_rows
from sparkdeploy_vllm.head.dealt_rows import NEVER, best_of_share, best_over_ranks
from sparkdeploy_vllm.head.lm_head import integer_logits, logits_dtype, warm_up
from sparkdeploy_vllm.weights.conversion import DraftHead
from sparkdeploy_vllm.weights.fp8_linear import replace_parameter


class DraftHeadMethod(QuantizeMethodBase):
    """INT8 rows of the draft's frequent tokens; every other token's logit is minus infinity.

    On one rank the result has the shape of the whole head's, so that all that follows stays
    vLLM's. On several ranks it is the logits of this rank's share, which only SparkLogitsProcessor
    can read. Only what is proposed changes: the target verifies with its own head.
    """

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens
        self.plain = UnquantizedEmbeddingMethod()

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        self.plain.create_weights(layer, *weight_args, **extra_weight_attrs)
        layer.logits_dtype = logits_dtype(layer.weight.dtype)

    def process_weights_after_loading(self, layer: Module) -> None:
        """Keep this rank's share: int8 [width, K], FP32 `weight_scale` [width] and whose they are.

        `rows` [F] are all frequent tokens, `columns` [F] where their logits stand once all shares
        are joined, `share` [width] this rank's tokens. All ranks do this together.
        """
        if layer.weight.dtype == torch.int8:
            return
        deal = dealt_rows.deal_of(layer, self.tokens)
        layer.all_rows, layer.drafted = layer.weight.shape[0], deal.count
        rows, scales = dealt_rows.take_rows(layer, deal)
        kept = {"rows": deal.tokens, "columns": deal.columns(), "share": deal.share()}
        kept |= {"weight": rows, "weight_scale": scales}
        for name, tensor in kept.items():
            replace_parameter(layer, name, tensor.to(rows.device))
        warm_up(layer)
        a_rank = f", {deal.width} a rank" if deal.ranks > 1 else ""
        announce(f"sparkdeploy: draft head active: rows={len(self.tokens)}{a_rank}")

    def apply(self, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Logits [..., V] of one rank, or [..., width] of one of several."""
        if is_dealt(layer):
            if bias is not None:
                raise NotImplementedError("sparkdeploy: a draft head over ranks takes no bias")
            return integer_logits(layer, x, None)
        drafted = integer_logits(layer, x, None if bias is None else bias[layer.rows])
        logits = drafted.new_full((*x.shape[:-1], layer.all_rows), NEVER)
        return logits.index_copy_(-1, layer.rows, drafted)

    def embedding(self, layer: Module, input_: Tensor) -> Tensor:
        raise NotImplementedError("sparkdeploy: a draft head embeds nothing")


class SparkLogitsProcessor(LogitsProcessor):
    """vLLM's, except that a draft model with a head of its own keeps it.

    vLLM gives every MTP draft the target's head once both are loaded. The draft's processor is
    made right after its head, and remembers that one. Where that head is dealt over ranks, it also
    joins the shares: vLLM takes a rank's part for consecutive tokens.

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

    def _get_logits(
        self,
        hidden_states: Tensor,
        lm_head: Module,
        embedding_bias: Tensor | None,
        skip_gather: bool = False,
    ) -> Any:
        """`skip_gather`, in newer releases, asks for consecutive tokens, which no share is."""
        if not is_dealt(lm_head):
            rest = (skip_gather,) if skip_gather else ()
            return LogitsProcessor._get_logits(self, hidden_states, lm_head, embedding_bias, *rest)
        if skip_gather:
            raise NotImplementedError("sparkdeploy: a draft head over ranks is always gathered")
        share = lm_head.quant_method.apply(lm_head, hidden_states, bias=embedding_bias)
        return dealt_rows.spread(share, lm_head, self.org_vocab_size)

    def get_top_tokens(self, lm_head: Module, *args: Any, **kwargs: Any) -> Any:
        head = chosen_head(self, lm_head)
        if not is_dealt(head):
            return LogitsProcessor.get_top_tokens(self, head, *args, **kwargs)
        share = share_logits(self, head, *args, **kwargs)
        return best_over_ranks(*best_of_share(share, head, 1), 1)[1].squeeze(-1)

    def get_top_k_tokens(
        self,
        lm_head: Module,
        hidden_states: Tensor,
        k: int,
        embedding_bias: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        # vLLM has it since 0.29, and asks for it nowhere before.
        head = chosen_head(self, lm_head)
        if not is_dealt(head):
            top_k = LogitsProcessor.get_top_k_tokens
            return top_k(self, head, hidden_states, k, embedding_bias, **kwargs)
        share = share_logits(self, head, hidden_states, embedding_bias)
        values, tokens = best_over_ranks(*best_of_share(share, head, k), k)
        if kwargs.get("return_log_probs"):
            parts = share.float().logsumexp(dim=-1, keepdim=True)
            values = values - tensor_model_parallel_all_gather(parts).logsumexp(-1, keepdim=True)
        return tokens, values


def is_dealt(head: Module) -> bool:
    """Whether a head is a draft's whose rows are dealt over several ranks."""
    # LoRA's wrapper of a head has neither.
    return isinstance(getattr(head, "quant_method", None), DraftHeadMethod) and head.tp_size > 1


def share_logits(
    processor: Module, head: Module, hidden_states: Tensor, embedding_bias: Tensor | None = None
) -> Tensor:
    """Logits [M, width] of this rank's share, capped and scaled as vLLM's `forward` does."""
    logits = head.quant_method.apply(head, hidden_states, bias=embedding_bias)
    if processor.soft_cap is not None:
        logits = torch.tanh(logits / processor.soft_cap) * processor.soft_cap
    scaled = logits * processor.scale if processor.scale != 1.0 else logits
    return dealt_rows.without_filling(scaled, head)


def chosen_head(processor: Module, lm_head: Module) -> Module:
    own = getattr(processor, "own_head", ())
    return own[0] if own else lm_head


def draft_head_method(wanted: DraftHead, vocabulary: int) -> DraftHeadMethod:
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
    # Where they lie must not hang on the device in whose name vLLM makes layers.
    return DraftHeadMethod(torch.tensor(tokens, device="cpu"))
