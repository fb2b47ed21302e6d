"""FP32 logits of the INT8 head through what vLLM does to logits: none of it makes ties of them."""

from types import SimpleNamespace
from typing import Any

import torch
import xgrammar
from check_draft_head import TOKENS, VOCABULARY, _both_heads, _checkpoint
from check_vllm_hooks import _config, _head, _one_rank, _process
from vllm.config import get_current_vllm_config
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.v1.sample.sampler import Sampler

FIRST, SECOND = 7, 99
"""Two tokens that BF16 cannot tell apart; the second is the more likely one."""
HIDDEN = 128
STEP = 0.03


def _close_head(logit: float) -> Any:
    """A loaded head that gives FIRST this logit, SECOND a little more and the others nothing."""
    head = _head(_config())
    head.weight.data.zero_()
    head.quant_method.ledger.whole_model = False  # no FP8 layers here to be missed
    _process(head)
    head.weight.data[[FIRST, SECOND]] = 127
    head.weight_scale.data[[FIRST, SECOND]] = torch.tensor([logit, logit + STEP]) / (127 * HIDDEN)
    return head


def _asked(rows: int = 1) -> torch.Tensor:
    return torch.ones(rows, HIDDEN, dtype=torch.bfloat16)


def check_two_close_tokens_are_told_apart_by_processor_and_sampler() -> None:
    with _one_rank():
        head = _close_head(20)
        processor = LogitsProcessor(VOCABULARY)
        logits = processor(head, _asked(2))
        top = processor.get_top_tokens(head, _asked(2))
    assert logits.dtype == torch.float32
    assert Sampler.greedy_sample(logits).tolist() == top.tolist() == [SECOND, SECOND]
    assert logits.bfloat16().argmax(dim=1).tolist() == [FIRST, FIRST], "a tie before"
    log_probs = Sampler.compute_logprobs(logits)
    assert abs(log_probs[0, SECOND] - log_probs[0, FIRST] - STEP) < 1e-4


def check_a_grammar_s_mask_falls_on_the_very_logits() -> None:
    with _one_rank():
        logits = LogitsProcessor(VOCABULARY)(_close_head(20), _asked(2))
    mask = xgrammar.allocate_token_bitmask(2, VOCABULARY)
    mask[1, SECOND // 32] &= ~(1 << SECOND % 32)
    xgrammar.apply_token_bitmask_inplace(logits, mask)
    assert logits.argmax(dim=1).tolist() == [SECOND, FIRST]
    assert torch.isneginf(logits[1, SECOND])


def check_drafts_drawn_by_chance_keep_the_model_s_dtype() -> None:
    for method, dtype in (("greedy", torch.float32), ("probabilistic", torch.bfloat16)):
        with _checkpoint(TOKENS):
            speculation = SimpleNamespace(draft_sample_method=method)
            object.__setattr__(get_current_vllm_config(), "speculative_config", speculation)
            target, _, processor, _ = _both_heads()
            drafted, verified = (
                processor(target, _asked()),
                LogitsProcessor.forward(processor, target, _asked()),
            )
        # A draft without a head of its own shares the target's.
        assert drafted.dtype == verified.dtype == dtype, method
