"""What vLLM's CPU engine lacks for a rehearsal; no other engine is touched.

Gated DeltaNet: on x86 without AMX, vLLM 0.32 convolves plain decoding steps in one kernel (it
rounds once) and steps with speculative tokens in another way (it rounds to BF16 before the
activation); the two recurrences round differently too. Greedy texts then drift apart at the first
near-tie, and a rehearsal could not tell that from a fault. Here both cases share one convolution
(with AVX-512-BF16 the fused kernel, whose packed weights are there anyway; without, the arithmetic
below) and one recurrence (the plain kernel, token by token).

A step of one token, such as a prompt of one: the convolution's operator refuses its input, whose
rows lie as far apart as in the projection that it was cut from, and the engine dies (0.25.1 and
0.32). For one row any distance is right, and it is told the one it wants.

INT4: vLLM 0.32 takes `CPUWNA16LinearKernel` on every CPU, but compiles its operator for AVX-512
alone: on other machines the engine loads, says that it is healthy and dies at its first request.
There the weights are unpacked while loading and multiplied in plain torch. That takes eight times
the memory, which is nothing for a twin.

Sampling beside drafts: vLLM 0.32 spreads a request's temperature, top-k and top-p over its drafted
tokens by an operator for 64-bit integers, into a copy of the tensor that is read afterwards. What
is read is memory that nobody wrote, and the engine dies of a top-k beyond the vocabulary.

TurboQuant: vLLM 0.32 takes its own CPU back end for every cache, also for one that back end cannot
read. Layers with such a cache get the plugin's.

Models: vLLM imports a model's class in a process of its own, lest CUDA is initialised in the one
that serves. Here there is no CUDA, and that process first imports all of vLLM again.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, functional

from sparkdeploy_vllm.announce import announce_once
from sparkdeploy_vllm.weights.reference import linear_per_row

SPECULATIVE_RECURRENCE = "fused_sigmoid_gating_delta_rule_update_spec_cpu"
CONVOLUTION = "causal_conv1d_fwd_cpu"
INT4_OPERATOR = "cpu_gemm_wna16"
BITS = 4
TURBOQUANT_PATH = "sparkdeploy_vllm.cpu.turboquant.CpuTurboQuantBackend"


def register() -> None:
    from vllm.model_executor.models import registry
    from vllm.v1.sample import rejection_sampler

    if hasattr(registry, "_run_in_subprocess"):
        registry._run_in_subprocess = lambda inspect: inspect()
    if hasattr(rejection_sampler, "expand_batch_to_tokens"):
        rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    _register_turboquant()
    _register_delta_net()
    _register_int4_linear()


def _register_turboquant() -> None:
    from vllm.platforms.cpu import CpuPlatform

    theirs = CpuPlatform.get_attn_backend_cls.__func__

    def choose(
        cls: type, selected_backend: Any, attn_selector_config: Any, *rest: Any, **named: Any
    ) -> Any:
        if (attn_selector_config.kv_cache_dtype or "").startswith("turboquant_"):
            # As vLLM says it of a back end on a GPU.
            announce_once("Using AttentionBackendEnum.TURBOQUANT backend.")
            return TURBOQUANT_PATH
        return theirs(cls, selected_backend, attn_selector_config, *rest, **named)

    CpuPlatform.get_attn_backend_cls = classmethod(choose)


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """Repeat a request's value [batch] for each of its tokens, whose ends `cu_num_tokens` adds up.

    [num_tokens] of the same dtype, with `replace_to` where a request has `replace_from`.
    """
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    replaced = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return replaced.repeat_interleave(counts.to(torch.int64), output_size=num_tokens)


def _register_delta_net() -> None:
    try:
        from vllm import _custom_ops
        from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
    except ImportError:
        return
    if torch.cpu._is_avx512_bf16_supported():
        # vLLM asks `AMX or is_arm_bf16()` where it means: does the fused kernel run here.
        if hasattr(gdn_attention, "is_arm_bf16"):
            gdn_attention.is_arm_bf16 = lambda: True
    elif hasattr(gdn_attention, "causal_conv1d_update_cpu") and hasattr(gdn_attention, "F"):
        gdn_attention.causal_conv1d_update_cpu = update_conv_state
        gdn_attention.F = SimpleNamespace(
            conv1d=_conv1d, silu=_silu_by_position, pad=functional.pad
        )
    if hasattr(_custom_ops, SPECULATIVE_RECURRENCE):
        setattr(_custom_ops, SPECULATIVE_RECURRENCE, recur_token_by_token)
    if hasattr(_custom_ops, CONVOLUTION):
        theirs = getattr(_custom_ops, CONVOLUTION)
        convolve_any = lambda x, *rest, **named: theirs(dense(x), *rest, **named)  # noqa: E731
        setattr(_custom_ops, CONVOLUTION, convolve_any)


def dense(x: Tensor) -> Tensor:
    """Return `x` [dim, tokens] of one token with its row as long as it is; any other as it is."""
    is_one_token = x.dim() == 2 and x.shape[1] == 1 and x.stride(0) == 1
    return x.as_strided(x.shape, (1, x.shape[0])) if is_one_token else x


def recur_token_by_token(  # noqa: PLR0913 - the operator's own arguments
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    spec_state_indices: Tensor,
    num_accepted_tokens: Tensor,
    cu_seqlens: Tensor,
    **same: Any,
) -> Tensor:
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
                cu_seqlens=one_step,
                initial_state_indices=torch.tensor([slot], dtype=torch.int32),
                **same,
            ).view_as(out[step])
            source = slot
    return out


def convolve(window: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
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
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:
    """One decoding step: `x` [n, dim], states [slots, dim, width - 1], updated in place."""
    slots = slice(None) if conv_state_indices is None else conv_state_indices.long()
    window = torch.cat([conv_state[slots], x.to(conv_state.dtype).unsqueeze(-1)], dim=-1)
    conv_state[slots] = window[..., 1:]
    out = convolve(window, weight, bias)[:, 0]
    return (functional.silu(out) if activation else out).to(x.dtype)


def _conv1d(x: Tensor, weight: Tensor, bias: Tensor | None = None, **_: Any) -> Tensor:
    """As torch's conv1d of a depthwise [dim, 1, width] kernel; FP32 [n, dim, q]."""
    return convolve(x, weight[:, 0], bias).transpose(1, 2)


def _silu_by_position(x: Tensor) -> Tensor:
    """SiLU of [dim, q] with channels contiguous, as `update_conv_state` applies it."""
    return functional.silu(x.transpose(0, 1).contiguous()).transpose(0, 1)


def _register_int4_linear() -> None:
    try:
        # Importing it loads the compiled operators.
        from vllm import _custom_ops  # noqa: F401
        from vllm.model_executor.kernels.linear.mixed_precision import cpu
    except ImportError:
        return
    if hasattr(torch.ops._C, INT4_OPERATOR):
        return
    cpu.CPUWNA16LinearKernel.process_weights_after_loading = unpack_weights
    cpu.CPUWNA16LinearKernel.apply_weights = apply_weights


def unpack_weights(kernel: Any, layer: Module) -> None:
    """Replace a layer's packed weights by FP32 [N, K]: `(value - zero) * scale` of its group.

    Packed are [K / 8, N] or its transpose, scales [groups, N] or its transpose, zero points (where
    the type has no constant one) [groups, N / 8] or its transpose, as vLLM marks them.
    """
    packed = getattr(layer, kernel.w_q_name)
    scales = _upright(getattr(layer, kernel.w_s_name)).float()
    values = _unpack_rows(packed.t() if packed.input_dim == 1 else packed.data)
    zeros = torch.tensor(float(kernel.config.weight_type.bias))
    if kernel.config.zero_points:
        stored = _upright(getattr(layer, kernel.w_zp_name))
        zeros = _unpack_rows(stored.t()).t().unsqueeze(1).float()
    groups = values.float().view(scales.shape[0], -1, scales.shape[1])
    packed.data = ((groups - zeros) * scales.unsqueeze(1)).view(values.shape).t().contiguous()


def apply_weights(kernel: Any, layer: Module, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` [..., K] times the unpacked weights, plus `bias`; each row independent of the others."""
    weight = getattr(layer, kernel.w_q_name)
    product = linear_per_row(x.reshape(-1, x.shape[-1]).float(), weight)
    if bias is not None:
        product += bias.float()
    return product.to(x.dtype).view(*x.shape[:-1], weight.shape[0])


def _upright(parameter: Tensor) -> Tensor:
    return parameter.t() if parameter.output_dim == 0 else parameter.data


def _unpack_rows(packed: Tensor) -> Tensor:
    """Eight values of an int32, the lowest bits first: [rows, N] to [8 * rows, N]."""
    shifts = torch.arange(0, 32, BITS, dtype=torch.int32)
    values = (packed.unsqueeze(1) >> shifts.view(1, -1, 1)) & (2**BITS - 1)
    return values.reshape(-1, packed.shape[1])
