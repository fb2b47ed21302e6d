"""What drafts ask in the place of the target's LM head: its rows of frequent tokens only, INT8."""

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
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)

from sparkdeploy_vllm.announce import announce, warn_once
from sparkdeploy_vllm.head import dealt_rows
from sparkdeploy_vllm.head.dealt_rows import NEVER, best_of_share, best_over_ranks
from sparkdeploy_vllm.head.lm_head import integer_logits, logits_dtype, replace_layer, warm_up
from sparkdeploy_vllm.weights.conversion import DraftHead
from sparkdeploy_vllm.weights.fp8_linear import replace_parameter


class DraftHeadMethod(QuantizeMethodBase):
    """What asks a DraftRows; vLLM's processors call it by the head's `quant_method`."""

    def create_weights(self, layer: Module, *weight_args: Any, **extra_weight_attrs: Any) -> None:
        raise NotImplementedError("sparkdeploy: a draft head is cut from another, not loaded")

    def process_weights_after_loading(self, layer: Module) -> None:
        """Do nothing: its rows were cut from a head that is converted already."""

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


class DraftRows(Module):
    """INT8 rows of the drafts' frequent tokens; every other token's logit is minus infinity.

    They are cut from the target's head once that is loaded and, where it is, converted. On one rank
    the result has the shape of the whole head's, so that all that follows stays vLLM's. On several
    ranks it is the logits of this rank's share, which only SparkLogitsProcessor can read. Only what
    is proposed changes: the target verifies with its own head, which stays as it is.
    """

    def __init__(self, head: Module, tokens: Tensor) -> None:
        """Keep this rank's share: int8 [width, K], FP32 `weight_scale` [width] and whose they are.

        `rows` [F] are all frequent tokens, `columns` [F] where their logits stand once all shares
        are joined, `share` [width] this rank's tokens. All ranks do this together.
        """
        super().__init__()
        self.quant_method = DraftHeadMethod()
        self.params_dtype = head.params_dtype
        self.logits_dtype = logits_dtype(head.params_dtype)
        self.shard_indices, self.tp_size = head.shard_indices, head.tp_size
        deal = dealt_rows.deal_of(head, tokens)
        self.all_rows, self.drafted = self.shard_indices.num_elements_padded, deal.count
        rows, scales = dealt_rows.take_rows(head, deal)
        kept = {"rows": deal.tokens, "columns": deal.columns(), "share": deal.share()}
        kept |= {"weight": rows, "weight_scale": scales}
        for name, tensor in kept.items():
            replace_parameter(self, name, tensor.to(rows.device))
        warm_up(self)
        a_rank = f", {deal.width} a rank" if deal.ranks > 1 else ""
        announce(f"sparkdeploy: draft head active: rows={len(tokens)}{a_rank}")


class TargetHeads:
    """The heads that a model has before its draft model is made, and what is cut from them.

    Whatever drafts (a model's own MTP layers, or another model) gets the target's head from vLLM
    once both are loaded. A model that ties them has its embeddings for a head.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.tokens = read_tokens(config.conversion.draft_head)
        self.heads: list[Module] = []
        self.embeddings: list[Module] = []
        self.cut: DraftRows | None = None

    def draft_rows(self) -> DraftRows:
        if self.cut is None:
            # Of several embeddings, as of positions or images, tokens have the first.
            head = self.heads[-1:] or self.embeddings[:1]
            if not head:
                raise ValueError("sparkdeploy: this model has no LM head that drafts could use")
            _refuse_beyond(self.tokens, head[0].org_vocab_size, self.config.conversion.draft_head)
            self.cut = DraftRows(head[0], torch.tensor(self.tokens, device="cpu"))
        return self.cut

    def has(self, head: Module) -> bool:
        # LoRA's wrapper of a head is another module.
        own = getattr(head, "base_layer", head)
        return any(own is known for known in (*self.heads, *self.embeddings))


_targets: list[TargetHeads] = []
"""At most one: a process serves one model, and a drafter may have a configuration of its own."""


def remember_head(layer: Module) -> None:
    """Keep a head, or embeddings, of the model that is being made, if drafts get a part of it."""
    config = getattr(get_current_vllm_config_or_none(), "quant_config", None)
    wanted = getattr(getattr(config, "conversion", None), "draft_head", None)
    if wanted is None or config.ledger.closed:
        return
    if not _targets or _targets[0].config is not config:
        _targets[:] = [TargetHeads(config)]
        # Not before: a model without such a head runs vLLM's own processor.
        replace_layer(LogitsProcessor, SparkLogitsProcessor)
    kept = _targets[0].heads if isinstance(layer, ParallelLMHead) else _targets[0].embeddings
    kept.append(layer)


class SparkLogitsProcessor(LogitsProcessor):
    """vLLM's, which for drafts asks the frequent rows of the target's head instead of all.

    Where those are dealt over ranks, it also joins the shares: vLLM takes a rank's part for
    consecutive tokens. The target's own processor is vLLM's own class.

    No zero-argument super(): LoRA's wrapper calls the methods of a processor's class with itself
    in the place of the processor, and is no subclass.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Processors that are made once the target is loaded are a draft model's.
        if not (_targets and _targets[0].config.ledger.closed):
            self.__class__ = LogitsProcessor
            return
        # Not a child: vLLM moves, names and counts the parameters of children.
        self.own_head = (_targets[0].draft_rows(), _targets[0])

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
    """Return the frequent rows for a head of the target's; a drafter's own head is left alone."""
    own = getattr(processor, "own_head", None)
    if own is None or lm_head is own[0]:
        return lm_head
    if own[1].has(lm_head):
        return own[0]
    warn_once(
        "sparkdeploy: the draft head is not used: this drafter has an LM head of its own, which "
        "drafts; remove checkpoint.draft_lm_head"
    )
    return lm_head


def read_tokens(wanted: DraftHead) -> list[int]:
    """Return the tokens of the file beside config.json; ValueError for any but the stated ones."""
    model_config = get_current_vllm_config().model_config
    if model_config.enable_sleep_mode:
        # Level 2 gives the weights' memory away, and vLLM reloads the target's weights only: which
        # rows the draft head has would be whatever lies there then.
        raise ValueError(
            "sparkdeploy: a server with --enable-sleep-mode cannot have a draft head: vLLM does "
            "not load it again after a sleep. Remove the flag, or checkpoint.draft_lm_head"
        )
    content = json.loads((Path(model_config.model) / wanted.file).read_text(encoding="utf-8"))
    tokens = sorted(set(content["tokens"]))
    if len(tokens) != wanted.rows:
        raise ValueError(
            f"sparkdeploy: {wanted.file} has {len(tokens)} tokens, expected {wanted.rows}"
        )
    return tokens


def _refuse_beyond(tokens: list[int], vocabulary: int, wanted: DraftHead) -> None:
    if not 0 <= tokens[0] <= tokens[-1] < vocabulary:
        raise ValueError(
            f"sparkdeploy: {wanted.file} has tokens from {tokens[0]} to {tokens[-1]} for a "
            f"vocabulary of {vocabulary}"
        )


class SparkEmbedding(VocabParallelEmbedding):
    """vLLM's embeddings, remembered: of a model that ties them, they are the head.

    Once made they are vLLM's own class, also for the models that are none of ours.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__class__ = VocabParallelEmbedding
        remember_head(self)
