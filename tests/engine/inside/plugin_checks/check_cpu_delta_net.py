"""On the CPU engine, Gated DeltaNet gives the same bits with and without speculation."""

import torch
from needs import needs_avx512
from sparkdeploy_vllm import register
from sparkdeploy_vllm.cpu.engine import (
    SPECULATIVE_RECURRENCE,
    convolve,
    recur_token_by_token,
    update_conv_state,
)
from torch.nn import functional
from vllm import _custom_ops
from vllm.platforms import current_platform

KEY_HEADS, VALUE_HEADS, DIM, SLOTS = 2, 4, 128, 8


def _states() -> torch.Tensor:
    return torch.randn(SLOTS, VALUE_HEADS, DIM, DIM) * 0.1


def _step(states: torch.Tensor, slot: int, **token: torch.Tensor) -> torch.Tensor:
    return _custom_ops.fused_sigmoid_gating_delta_rule_update_cpu(
        initial_state_source=states,
        initial_state_indices=torch.tensor([slot], dtype=torch.int32),
        cu_seqlens=torch.tensor([0, 1], dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
        **token,
    )


def check_verifying_three_tokens_equals_decoding_them_one_by_one() -> None:
    register()
    if not current_platform.is_cpu():
        return
    assert getattr(_custom_ops, SPECULATIVE_RECURRENCE) is recur_token_by_token
    tokens = {
        "q": torch.randn(3, KEY_HEADS, DIM).bfloat16(),
        "k": torch.randn(3, KEY_HEADS, DIM).bfloat16(),
        "v": torch.randn(3, VALUE_HEADS, DIM).bfloat16(),
        "a": torch.randn(3, VALUE_HEADS).bfloat16(),
        "b": torch.randn(3, VALUE_HEADS).bfloat16(),
    }
    gates = {"A_log": torch.rand(VALUE_HEADS).log(), "dt_bias": torch.randn(VALUE_HEADS).bfloat16()}
    one_by_one = _states()
    together = one_by_one.clone()
    got = getattr(_custom_ops, SPECULATIVE_RECURRENCE)(
        **tokens,
        **gates,
        initial_state_source=together,
        spec_state_indices=torch.tensor([[2, 3, 4]], dtype=torch.int32),
        num_accepted_tokens=torch.tensor([2], dtype=torch.int32),  # so it resumes from slot 3
        cu_seqlens=torch.tensor([0, 3], dtype=torch.int32),
        use_qk_l2norm_in_kernel=True,
    )
    for index in range(3):
        step = slice(index, index + 1)
        token = {
            name: value[step] if name in "ab" else value[None, step]
            for name, value in tokens.items()
        }
        alone = _step(one_by_one, 3, **token, **gates)
        assert torch.equal(got[step].flatten(), alone.flatten())
        # The state after token t is in slot t of the sequence.
        assert torch.equal(together[[2, 3, 4][index]], one_by_one[3])


@needs_avx512
def check_a_prompt_of_one_token_is_convolved_wherever_its_row_was_cut_from() -> None:
    """Beside drafts or not, the engine died of it."""
    register()
    if not current_platform.is_cpu():
        return
    dim = 256
    projection = torch.randn(1, dim + 64).bfloat16()
    weight = torch.randn(dim, 4).bfloat16()
    got = [
        _custom_ops.causal_conv1d_fwd_cpu(
            x=row.transpose(0, 1),
            weight=weight,
            bias=None,
            conv_states=torch.zeros(SLOTS, 3, dim).bfloat16().transpose(1, 2),
            query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
            cache_indices=torch.tensor([2], dtype=torch.int32),
            has_initial_state=torch.tensor([False]),
            silu_activation=True,
            is_weight_packed=False,
        )
        for row in (projection[:, :dim], torch.empty(1, dim).bfloat16().copy_(projection[:, :dim]))
    ]
    assert torch.equal(*got)


def check_the_convolution_is_torch_s_and_ignores_the_number_of_positions() -> None:
    window = torch.randn(2, 64, 6).bfloat16()
    weight, bias = torch.randn(64, 4).bfloat16(), torch.randn(64).bfloat16()
    got = convolve(window, weight, bias)
    exact = functional.conv1d(
        window.double(), weight.double().unsqueeze(1), bias.double(), groups=64
    )
    assert torch.allclose(got.double(), exact.transpose(1, 2), atol=1e-5)
    for position in range(3):
        alone = convolve(window[:, :, position : position + 4], weight, bias)
        assert torch.equal(alone[:, 0], got[:, position])


def check_a_decoding_step_rolls_the_state_and_equals_vllm_s_kernel() -> None:
    if not current_platform.is_cpu():
        return
    mine = torch.randn(SLOTS, 1024, 3).bfloat16()
    theirs = mine.clone()
    x, weight = torch.randn(1, 1024).bfloat16(), torch.randn(1024, 4).bfloat16()
    slots = torch.tensor([5], dtype=torch.int32)
    got = update_conv_state(x, mine, weight, None, "silu", slots)
    expected = _custom_ops.causal_conv1d_update_cpu_vec(
        x, theirs, weight, None, "silu", slots, None, 0
    )
    assert torch.equal(mine, theirs)
    assert torch.allclose(got.float(), expected.float(), rtol=2**-7)
