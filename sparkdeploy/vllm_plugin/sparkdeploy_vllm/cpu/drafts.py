"""Gated DeltaNet beside drafts on vLLM 0.25 for CPUs, which refuses them ("speculative decode not
supported in CPU GDN attention"); later releases have it, and are left alone.

The arithmetic is that release's own: its convolutions, its chunked recurrence for prompts, its
plain one for every other token. Here is what it lacks: where states are read and left when several
tokens are verified. The caches are laid out as on a GPU. A sequence has one convolution buffer of
`width - 1 + drafts` columns; the columns after the last accepted token are its history. It has a
recurrent state for each token of a step, so that the next one resumes after whichever was accepted.

Where nothing is drafted vLLM's function runs untouched, and the two texts can be compared.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, get_type_hints

import torch
from torch import Tensor

from sparkdeploy_vllm.cpu.engine import SPECULATIVE_RECURRENCE, recur_token_by_token


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a layer projected of some tokens, in their order: [tokens, dim], [tokens, heads]."""

    mixed_qkv: Tensor
    b: Tensor
    a: Tensor

    def at(self, chosen: Tensor | slice) -> Tokens:
        return Tokens(self.mixed_qkv[chosen], self.b[chosen], self.a[chosen])


def register() -> None:
    try:
        from vllm import _custom_ops
        from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
    except ImportError:
        return
    if hasattr(_custom_ops, SPECULATIVE_RECURRENCE):
        return
    # With AMX the weights of convolutions are packed for kernels that know no drafts.
    torch.cpu._is_amx_tile_supported = lambda: False
    theirs = gdn_attention.cpu_gdn_attention_core

    def core(mixed_qkv: Any, b: Any, a: Any, core_attn_out: Any, layer_name: Any) -> None:
        context = gdn_attention.get_forward_context()
        layer = context.no_compile_layers[gdn_attention._resolve_layer_name(layer_name)]
        if context.attn_metadata is None or (
            _convolution_states(layer).shape[-1] <= _width(layer) - 1  # no place for drafts
        ):
            theirs(mixed_qkv, b, a, core_attn_out, layer_name)
            return
        attend(layer, context.attn_metadata[layer.prefix], Tokens(mixed_qkv, b, a), core_attn_out)

    # vLLM makes an operator of it, and reads its schema off these.
    core.__annotations__ = {**get_type_hints(theirs), "return": None}
    gdn_attention.cpu_gdn_attention_core = core


def attend(layer: Any, metadata: Any, tokens: Tokens, out: Tensor) -> None:
    """Write into `out` [tokens, heads, dim] what the layer makes of a step's tokens."""
    if metadata.spec_sequence_masks is not None:
        drafted, others = metadata.spec_token_indx, metadata.non_spec_token_indx
        out[drafted] = _drafts(layer, metadata, tokens.at(drafted))
        if metadata.num_prefills:
            out[others] = _prompts(layer, metadata, tokens.at(others))
        return
    singles, count = slice(metadata.num_decodes), metadata.num_actual_tokens
    if metadata.num_decodes:
        slots = metadata.non_spec_state_indices_tensor[singles]
        out[singles] = _singles(layer, tokens.at(singles), slots)
    if metadata.num_prefills:
        rest = slice(metadata.num_decodes, count)
        out[rest] = _prompts(layer, metadata, tokens.at(rest))


def _singles(layer: Any, tokens: Tokens, slots: Tensor) -> Tensor:
    """One token of each sequence, none of them drafted: the first columns are its history."""
    history = _convolution_states(layer)[:, :, : _width(layer) - 1]
    mixed_qkv = torch.empty_like(tokens.mixed_qkv)
    for at, slot in enumerate(slots.tolist()):
        mixed_qkv[at] = _convolve_one(layer, tokens.mixed_qkv[at], history[slot])
    starts = torch.arange(slots.numel() + 1, dtype=torch.int32)
    return _recur(layer, tokens, mixed_qkv, slots[:, None], torch.ones_like(slots), starts)


def _drafts(layer: Any, metadata: Any, tokens: Tokens) -> Tensor:
    count, width = metadata.num_spec_decodes, _width(layer)
    states = _convolution_states(layer)
    slots = metadata.spec_state_indices_tensor[:count]
    accepted = metadata.num_accepted_tokens[:count]
    starts = metadata.spec_query_start_loc[: count + 1]
    mixed_qkv = torch.empty_like(tokens.mixed_qkv)
    for sequence, (first, end) in enumerate(itertools.pairwise(starts.tolist())):
        if end == first:
            continue
        buffer = states[int(slots[sequence, 0])]
        known = buffer[:, int(accepted[sequence]) - 1 :][:, : width - 1].clone()
        history = known.clone()
        for at in range(first, end):
            mixed_qkv[at] = _convolve_one(layer, tokens.mixed_qkv[at], history)
        seen = torch.cat([known[:, 1:], tokens.mixed_qkv[first:end].t().to(buffer.dtype)], dim=-1)
        buffer[:, : seen.shape[1]] = seen
    return _recur(layer, tokens, mixed_qkv, slots, accepted, starts)


def _prompts(layer: Any, metadata: Any, tokens: Tokens) -> Tensor:
    """Parts of prompts, of which some go on from a state; as vLLM does it where nothing drafts."""
    from vllm import _custom_ops
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    first, end = metadata.num_decodes, metadata.num_decodes + metadata.num_prefills
    slots = metadata.non_spec_state_indices_tensor[first:end]
    starts = metadata.non_spec_query_start_loc[first : end + 1] - first
    goes_on = metadata.has_initial_state[first:end]
    mixed_qkv = gdn_attention.causal_conv1d_torch(
        x=tokens.mixed_qkv.transpose(0, 1),
        weight=_weight(layer),
        bias=layer.conv1d.bias,
        conv_states=_convolution_states(layer),
        query_start_loc=starts,
        cache_indices=slots,
        has_initial_state=goes_on,
        activation=layer.activation,
    ).transpose(0, 1)
    query, key, value = layer.rearrange_mixed_qkv(mixed_qkv)
    g, beta = _custom_ops.fused_gdn_gating_cpu(
        A_log=layer.A_log, a=tokens.a.contiguous(), b=tokens.b.contiguous(), dt_bias=layer.dt_bias
    )
    states = _recurrent_states(layer)
    initial = states[slots]
    initial[~goes_on] = 0
    out, last = _custom_ops.chunk_gated_delta_rule_cpu(
        query=query, key=key, value=value, g=g, beta=beta, initial_state=initial,
        output_final_state=True, cu_seqlens=starts, head_first=False, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    states[slots] = last.to(states.dtype)
    return out.squeeze(0)


def _recur(
    layer: Any, tokens: Tokens, mixed_qkv: Tensor, slots: Tensor, accepted: Tensor, starts: Tensor
) -> Tensor:
    query, key, value = (part.squeeze(0) for part in layer.rearrange_mixed_qkv(mixed_qkv))
    return recur_token_by_token(
        q=query,
        k=key,
        v=value,
        a=tokens.a.contiguous(),
        b=tokens.b.contiguous(),
        initial_state_source=_recurrent_states(layer),
        spec_state_indices=slots,
        num_accepted_tokens=accepted,
        cu_seqlens=starts,
        A_log=layer.A_log,
        dt_bias=layer.dt_bias,
        use_qk_l2norm_in_kernel=True,
    )


def _convolve_one(layer: Any, token: Tensor, history: Tensor) -> Tensor:
    """Convolve a token [dim] with what was before it [dim, width - 1], which it joins in place."""
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    return gdn_attention.causal_conv1d_update_torch(
        x=token[None, :, None],
        conv_state=history[None],
        weight=_weight(layer),
        bias=layer.conv1d.bias,
        activation=layer.activation,
    )[0, :, 0]


def _width(layer: Any) -> int:
    return int(layer.conv1d.weight.shape[-1])


def _weight(layer: Any) -> Tensor:
    weight = layer.conv1d.weight
    return weight.view(weight.shape[0], weight.shape[-1])


def _convolution_states(layer: Any) -> Tensor:
    """[slots, dim, columns], which writes into the cache."""
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    states = layer.kv_cache[0]
    return states if gdn_attention.is_conv_state_dim_first() else states.transpose(-1, -2)


def _recurrent_states(layer: Any) -> Tensor:
    """[slots, heads, key dim, value dim], as vLLM's CPU kernels lay it out."""
    states = layer.kv_cache[1]
    slots, heads, value_dim, key_dim = states.shape
    return states.view(slots, heads, key_dim, value_dim)
