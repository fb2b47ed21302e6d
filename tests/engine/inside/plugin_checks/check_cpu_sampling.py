"""Beside drafts, every drafted token is sampled with its own request's settings."""

import torch
from sparkdeploy_vllm import register
from vllm.platforms import current_platform
from vllm.v1.sample import rejection_sampler


def check_values_are_spread_over_the_tokens_of_their_request() -> None:
    if not current_platform.is_cpu():
        return
    register()
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    temperatures = torch.tensor([0.0, 0.5, 0.75])
    spread = rejection_sampler.expand_batch_to_tokens(temperatures, ends, 5, 0, 1)
    assert spread.tolist() == [1.0, 1.0, 0.75, 0.75, 0.75]
    chosen = torch.tensor([20, 7, 512], dtype=torch.int32)
    spread = rejection_sampler.expand_batch_to_tokens(chosen, ends, 5)
    assert spread.tolist() == [20, 20, 512, 512, 512]
    assert spread.dtype == torch.int32
