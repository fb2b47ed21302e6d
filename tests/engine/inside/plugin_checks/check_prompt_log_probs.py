"""Log-probabilities of a prompt by the INT8 head and vLLM's own sampler, against FP64."""

import torch
from check_vllm_hooks import _config, _head, _load, _one_rank, _process
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.v1.sample.sampler import Sampler

VOCABULARY = 500
PROMPT_TOKENS = 140
"""More rows at once than any tile of the GPU kernels has."""
BEST = 5


def check_a_prompt_s_log_probs_are_those_of_floating_point() -> None:
    with _one_rank():
        head = _head(_config())
        weight = _load(head.weight, VOCABULARY)
        head.quant_method.ledger.whole_model = False  # no FP8 layers here to be missed
        _process(head)
        drawn = torch.Generator().manual_seed(11)
        tokens = torch.randint(VOCABULARY, (PROMPT_TOKENS,), generator=drawn)
        # Half the positions expect their next token strongly, half of them nothing.
        x = torch.randn(PROMPT_TOKENS - 1, weight.shape[1], generator=drawn)
        x[::2] += weight[tokens[1::2]].float() * 60
        x = x.bfloat16()
        logits = LogitsProcessor(VOCABULARY)(head, x)
    # The steps that vLLM's model runner takes for `prompt_logprobs`.
    log_probs = Sampler.compute_logprobs(logits)
    ids, said, ranks = Sampler.gather_logprobs(log_probs, BEST, tokens[1:].long())[:3]
    scales = head.weight_scale[:VOCABULARY].double()
    exact = x.double() @ weight.double().T
    rounded = (x.double() @ head.weight[:VOCABULARY].double().T) * scales
    fp32 = 2 * rounded.abs().amax(dim=1) * 2**-20 + 1e-4
    # Six standard deviations of a sum of evenly spread errors of up to half a step, twice.
    int8 = 12 * scales.max() / 12**0.5 * x.double().norm(dim=1)
    told = said[:, 0].double()
    assert ids.shape == (PROMPT_TOKENS - 1, BEST + 1)
    assert ((told - _of(tokens[1:], rounded)).abs() <= fp32).all()
    assert ((told - _of(tokens[1:], exact)).abs() <= fp32 + int8).all()
    two = exact.topk(2, dim=1)
    clear = two.values[:, 0] - two.values[:, 1] > fp32 + int8
    assert clear.sum() > PROMPT_TOKENS / 3
    assert torch.equal(ids[clear, 1].long(), two.indices[clear, 0])
    expected = clear & (two.indices[:, 0] == tokens[1:])
    assert expected.sum() > PROMPT_TOKENS / 3
    assert (ranks[expected] == 1).all()


def _of(tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return logits.log_softmax(dim=1).gather(1, tokens.unsqueeze(1)).squeeze(1)
