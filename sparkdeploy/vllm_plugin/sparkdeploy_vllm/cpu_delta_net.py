"""Makes vLLM's CPU engine compute Gated DeltaNet alike with and without speculation.

On x86 without AMX, vLLM 0.32 convolves plain decoding steps in one kernel (it rounds once) and
steps with speculative tokens in another way (it rounds to BF16 before the activation); the two
recurrences round differently too. Greedy texts then drift apart at the first near-tie, and a
rehearsal could not tell that from a fault. Here both cases share one convolution (with
AVX-512-BF16 the fused kernel, whose packed weights are there anyway; without, the arithmetic
below) and one recurrence (the plain kernel, token by token). Only the CPU engine is touched.
"""

from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

SPECULATIVE_RECURRENCE = "fused_sigmoid_gating_delta_rule_update_spec_cpu"


def register() -> None:
    """Give both cases one implementation; for a CPU platform."""
    try:
        from vllm import _custom_ops
        from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
    except ImportError:
        return
    if torch.cpu._is_avx512_bf16_supported():
        _use_fused_kernel_everywhere(gdn_attention)
    else:
        _use_one_arithmetic(gdn_attention)
    if hasattr(_custom_ops, SPECULATIVE_RECURRENCE):
        setattr(_custom_ops, SPECULATIVE_RECURRENCE, recur_token_by_token)


def recur_token_by_token(  # noqa: PLR0913 - the operator's own arguments
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    initial_state_source: torch.Tensor,
    spec_state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    **same: Any,
) -> torch.Tensor:
    """The speculative recurrence by way of vLLM's plain one; same arguments, [T, heads, dim].

    A sequence resumes from its slot `num_accepted - 1` and leaves its state after token t in slot
    t, so that the next step can resume after whichever token was accepted.
    """
    from vllm import _custom_ops

    out = torch.empty_like(v)
    states = initial_state_source
    bounds = cu_seqlens.tolist()
    one_step = torch.tensor([0, 1], dtype=torch.int32)
    for sequence, accepted in enumerate(num_accepted_tokens.tolist()):
        slots = spec_state_indices[sequence].tolist()
        source = slots[accepted - 1]
        for token, slot in zip(range(bounds[sequence], bounds[sequence + 1]), slots, strict=False):
            states[slot] = states[source].clone()
            step = slice(token, token + 1)
            out[step] = _custom_ops.fused_sigmoid_gating_delta_rule_update_cpu(
                q=q[None, step],
                k=k[None, step],
                v=v[None, step],
                a=a[step],
                b=b[step],
                initial_state_source=states,
                initial_state_indices=torch.tensor([slot], dtype=torch.int32),
                cu_seqlens=one_step,
                **same,
            ).view_as(out[step])
            source = slot
    return out


def convolve(window: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Depthwise: [n, dim, q + width - 1] with [dim, width] to FP32 [n, q, dim].

    Products are added tap by tap, so a position's value does not depend on `n` or `q`.
    """
    width = weight.shape[-1]
    positions = window.shape[-1] - width + 1
    taps = window.float().transpose(1, 2).contiguous()
    total = taps[:, :positions] * weight[:, 0].float()
    for tap in range(1, width):
        total = total + taps[:, tap : tap + positions] * weight[:, tap].float()
    return total if bias is None else total + bias.float()


def update_conv_state(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    conv_state_indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """One decoding step: `x` [n, dim], states [slots, dim, width - 1], updated in place."""
    slots = slice(None) if conv_state_indices is None else conv_state_indices.long()
    window = torch.cat([conv_state[slots], x.to(conv_state.dtype).unsqueeze(-1)], dim=-1)
    conv_state[slots] = window[..., 1:]
    out = convolve(window, weight, bias)[:, 0]
    return (functional.silu(out) if activation else out).to(x.dtype)


def _use_fused_kernel_everywhere(gdn_attention: ModuleType) -> None:
    # vLLM asks `AMX or is_arm_bf16()` where it means: does the fused kernel run here.
    if hasattr(gdn_attention, "is_arm_bf16"):
        gdn_attention.is_arm_bf16 = lambda: True


def _use_one_arithmetic(gdn_attention: ModuleType) -> None:
    if hasattr(gdn_attention, "causal_conv1d_update_cpu") and hasattr(gdn_attention, "F"):
        gdn_attention.causal_conv1d_update_cpu = update_conv_state
        gdn_attention.F = SimpleNamespace(
            conv1d=_conv1d, silu=_silu_by_position, pad=functional.pad
        )


def _conv1d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **_: Any
) -> torch.Tensor:
    """As torch's conv1d of a depthwise [dim, 1, width] kernel; FP32 [n, dim, q]."""
    return convolve(x, weight[:, 0], bias).transpose(1, 2)


def _silu_by_position(x: torch.Tensor) -> torch.Tensor:
    """SiLU of [dim, q] with channels contiguous, as `update_conv_state` applies it."""
    return functional.silu(x.transpose(0, 1).contiguous()).transpose(0, 1)
