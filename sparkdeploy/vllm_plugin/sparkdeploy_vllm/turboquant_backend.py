"""The TurboQuant back end, correct under speculation.

vLLM's builder claims full graphs for any uniform batch, but verifies speculative tokens in a Python
loop over requests whose lengths a captured graph freezes: silent garbage with MTP (vLLM 0.20 to
0.33). The replacement claims single-token decoding only when a speculative configuration is
present; vLLM then falls back to piecewise graphs by itself.
"""

from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backends import turboquant_attn

try:
    from vllm.v1.attention.backend import AttentionCGSupport
except ImportError:
    from vllm.v1.attention.backends.utils import AttentionCGSupport


class SparkTurboQuantBuilder(turboquant_attn.TurboQuantMetadataBuilder):
    """vLLM's builder; under speculation every verified token decodes as a request of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        if getattr(vllm_config, "speculative_config", None) is not None:
            return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return super().get_cudagraph_support(vllm_config, kv_cache_spec)

    def build(self, *args: Any, **kwargs: Any) -> turboquant_attn.TurboQuantMetadata:
        return verification_as_decoding(super().build(*args, **kwargs))


IGNORED = ("alibi_slopes", "sliding_window", "logits_soft_cap", "sinks")
"""What a layer may ask of attention and TurboQuant takes, but computes without on NVIDIA's GPUs."""


class SparkTurboQuantImpl(turboquant_attn.TurboQuantAttentionImpl):
    """vLLM's attention, held to what its scratch memory and its shortcut were made for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse_what_is_ignored(*args, **kwargs)
        super().__init__(*args, **kwargs)
        self.most_rows = get_current_vllm_config().scheduler_config.max_num_seqs
        """vLLM reserves its scratch memory for this many rows, and no more may be taken later."""

    def _decode_attention(
        self, query: Tensor, kv_cache: Tensor, attn_metadata: Any, *rest: Any, **named: Any
    ) -> Tensor:
        decode = super()._decode_attention
        count = query.shape[0]
        if count <= self.most_rows:
            return decode(query, kv_cache, attn_metadata, *rest, **named)
        output = torch.empty_like(query)
        for start in range(0, count, self.most_rows):
            rows = slice(start, start + self.most_rows)
            part = replace(
                attn_metadata,
                seq_lens=attn_metadata.seq_lens[rows],
                block_table=attn_metadata.block_table[rows],
            )
            output[rows] = decode(query[rows], kv_cache, part, *rest, **named)
        return output

    def _prefill_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        *rest: Any,
        **named: Any,
    ) -> Tensor:
        if shortcut_hides_a_cache(attn_metadata):
            attn_metadata = replace(attn_metadata, max_seq_len=attn_metadata.max_seq_len + 1)
        prefill = super()._prefill_attention
        return prefill(query, key, value, kv_cache, attn_metadata, *rest, **named)


def refuse_what_is_ignored(*args: Any, **kwargs: Any) -> None:
    wanted = signature(turboquant_attn.TurboQuantAttentionImpl).bind(*args, **kwargs).arguments
    wanted |= wanted.pop("kwargs", {})
    # vLLM's models say "no window" and "no cap" by None, zero or a negative number.
    asked = [
        name
        for name in IGNORED
        if (value := wanted.get(name)) is not None
        and not (isinstance(value, int | float) and value <= 0)
    ]
    if asked:
        raise ValueError(
            f"sparkdeploy: this model's attention has {' and '.join(asked)}, which vLLM's "
            "TurboQuant ignores: the text would be wrong; serve it with kv_cache_dtype: auto or fp8"
        )


def shortcut_hides_a_cache(metadata: Any) -> bool:
    """Whether vLLM would take a batch for fresh prompts although a request has a cache.

    It compares the longest query with the longest context, which can be two different requests'.
    """
    starts, lengths = metadata.query_start_loc_cpu, metadata.seq_lens_cpu
    if metadata.max_query_len != metadata.max_seq_len or starts is None or lengths is None:
        return False
    return bool(torch.any(starts[1:] - starts[:-1] != lengths))


class SparkTurboQuantBackend(turboquant_attn.TurboQuantAttentionBackend):
    @staticmethod
    def get_builder_cls() -> type[SparkTurboQuantBuilder]:
        return SparkTurboQuantBuilder

    @staticmethod
    def get_impl_cls() -> type[SparkTurboQuantImpl]:
        return SparkTurboQuantImpl

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        cache_dtype_str: str = "auto",
    ) -> tuple[int, ...]:
        """(blocks, tokens, heads, slot bytes), whatever dtype the runner believes in.

        vLLM 0.25.1 has no quantisation mode for TurboQuant and passes "auto", which vLLM's own
        method refuses: no TurboQuant engine starts. The engine's configuration knows the dtype.
        From 0.29 on back ends describe layouts instead, and nobody calls this.
        """
        if not cache_dtype_str.startswith("turboquant_"):
            cache_dtype_str = get_current_vllm_config().cache_config.cache_dtype
        return turboquant_attn.TurboQuantAttentionBackend.get_kv_cache_shape(
            num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str=cache_dtype_str
        )


def decode_rows(seq_lens: Tensor, query_start_loc: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """For each of the batch's first `tokens` tokens: its request [T] and its context's length [T].

    `seq_lens` [R] counts a request's tokens up to the last of this step, `query_start_loc` [R + 1]
    is where its tokens begin in the batch. A token sees itself and what comes before it. Tokens
    past the last request are padding; they get the last row and its length, at least one: more
    would lead the kernel to blocks that the row does not have.
    """
    token = torch.arange(tokens, device=seq_lens.device, dtype=query_start_loc.dtype)
    row = torch.searchsorted(query_start_loc[1:], token, right=True)
    row = row.clamp_(max=seq_lens.shape[0] - 1)
    behind = (query_start_loc[row + 1] - 1 - token).clamp_(min=0)
    return row, (seq_lens[row] - behind).clamp_(min=1).to(seq_lens.dtype)


def verification_as_decoding(metadata: Any) -> Any:
    """Split the short requests of `metadata` into requests of one token each.

    `metadata` is a TurboQuantMetadata whose first `num_decodes` requests are short ones. Every
    length is taken from the device: with asynchronous scheduling the host's lengths count drafts
    that were rejected. The rest of the batch (prefills, for which the host's are exact) is as it
    was.
    """
    requests, tokens = metadata.num_decodes, metadata.num_decode_tokens
    if metadata.max_query_len <= 1 or requests == 0:
        return metadata
    row, length = decode_rows(metadata.seq_lens[:requests], metadata.query_start_loc, tokens)
    starts = torch.arange(tokens, dtype=torch.int32)
    is_prefill = metadata.num_actual_tokens > tokens
    return replace(
        metadata,
        seq_lens=torch.cat([length, metadata.seq_lens[requests:]]),
        block_table=torch.cat([metadata.block_table[row], metadata.block_table[requests:]]),
        query_start_loc=torch.cat(
            [starts.to(metadata.query_start_loc.device), metadata.query_start_loc[requests:]]
        ),
        query_start_loc_cpu=_joined(starts, metadata.query_start_loc_cpu, requests),
        seq_lens_cpu=_joined(torch.ones_like(starts), metadata.seq_lens_cpu, requests),
        num_decodes=tokens,
        max_query_len=metadata.max_query_len if is_prefill else 1,
        is_prefill=is_prefill,
    )


def _joined(front: Tensor, whole: Tensor | None, requests: int) -> Tensor | None:
    return None if whole is None else torch.cat([front.to(whole.dtype), whole[requests:]])
