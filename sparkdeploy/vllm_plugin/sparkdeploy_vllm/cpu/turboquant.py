"""TurboQuant on vLLM's CPU engine, which has no kernel for it: for rehearsals, not for speed.

Every token is stored in its slot. A prompt whose tokens are all in the batch attends over its keys
and values as they are, everything else over slots, as vLLM's back end does on a GPU; there,
continuations of a prompt by more than 128 tokens see their own chunk unquantised as well. A
verification attends token by token, as decoding does, so that drafts change no text.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.quantization.turboquant.centroids import get_centroids
from vllm.v1.attention.backend import AttentionImpl, AttentionMetadata, AttentionMetadataBuilder
from vllm.v1.attention.backends import turboquant_attn

from sparkdeploy_vllm.turboquant.backend import SparkTurboQuantBackend, refuse_what_is_ignored
from sparkdeploy_vllm.turboquant.format import FP8_BITS, slot_format
from sparkdeploy_vllm.turboquant.reference import attend, attend_slots, pack_slots

HEAD_DIMS = frozenset({64, 128, 256})
"""Those for which the slots are held against a reference."""


@dataclass(frozen=True, slots=True)
class CpuTurboQuantMetadata(AttentionMetadata):
    """A batch of R requests, as vLLM's common metadata has it."""

    query_start_loc: Tensor
    """int32 [R + 1]: where a request's new tokens begin among the batch's."""
    seq_lens: Tensor
    """int32 [R]: a request's tokens up to its last new one."""
    block_table: Tensor


class CpuTurboQuantBuilder(AttentionMetadataBuilder[CpuTurboQuantMetadata]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # vLLM's is abstract.
        super().__init__(*args, **kwargs)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> CpuTurboQuantMetadata:
        del common_prefix_len, fast_build
        return CpuTurboQuantMetadata(
            query_start_loc=common_attn_metadata.query_start_loc,
            seq_lens=common_attn_metadata.seq_lens,
            block_table=common_attn_metadata.block_table_tensor,
        )


class CpuTurboQuantImpl(AttentionImpl[CpuTurboQuantMetadata]):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        asked = refuse_what_is_ignored(*args, **kwargs)
        head_size, kv_cache_dtype = asked["head_size"], asked.get("kv_cache_dtype", "auto")
        if head_size not in HEAD_DIMS:
            raise ValueError(
                f"sparkdeploy: heads of {head_size} dimensions cannot be rehearsed with "
                f"{kv_cache_dtype}, only those of {', '.join(map(str, sorted(HEAD_DIMS)))}"
            )
        self.num_heads, self.head_size = asked["num_heads"], head_size
        self.scale, self.kv_cache_dtype = float(asked["scale"]), kv_cache_dtype
        self.num_kv_heads = asked.get("num_kv_heads") or self.num_heads
        self.layout = slot_format(kv_cache_dtype, head_size)
        bits = self.layout.key_bits
        # FP8 keys have none, and are packed without a look at them.
        self.centroids = get_centroids(head_size, bits) if bits != FP8_BITS else torch.empty(0)

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Store tokens [T, KV heads, D] where `slot_mapping` int [T] says; -1 is padding."""
        del layer
        stored = (slot_mapping >= 0).nonzero().squeeze(1)
        places = slot_mapping[stored].long()
        slots = pack_slots(key[stored], value[stored], self.layout, self.centroids)
        cache = by_token(kv_cache)
        block_tokens = cache.shape[1]
        cache[places // block_tokens, places % block_tokens] = slots

    def forward(  # noqa: PLR0913, PLR0917 - vLLM's own arguments
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: CpuTurboQuantMetadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Attend for queries [T, heads, D] into `output` (as many elements), and return it."""
        del layer, output_scale, output_block_scale
        if attn_metadata is None:
            # vLLM measures its memory.
            return output.fill_(0)
        queries, attended = (
            each.view(-1, self.num_heads, self.head_size) for each in (query, output)
        )
        starts = attn_metadata.query_start_loc.tolist()
        for request, context in enumerate(attn_metadata.seq_lens.tolist()):
            tokens = slice(starts[request], starts[request + 1])
            count = tokens.stop - tokens.start
            if count == 0:
                continue
            wanted = queries[tokens].float()
            if count == context:
                found = attend(wanted, key[tokens].float(), value[tokens].float(), self.scale)
            else:
                slots = read_slots(kv_cache, attn_metadata.block_table[request], context)
                found = attend_slots(wanted, slots, self.layout, self.centroids, self.scale)
            attended[tokens] = found.to(output.dtype)
        return output


def read_slots(kv_cache: Tensor, blocks: Tensor, context: int) -> Tensor:
    """A request's first `context` slots, in its tokens' order: [context, KV heads, slot bytes]."""
    cache = by_token(kv_cache)
    token = torch.arange(context, device=kv_cache.device)
    block_tokens = cache.shape[1]
    return cache[blocks[token // block_tokens].long(), token % block_tokens]


def by_token(kv_cache: Tensor) -> Tensor:
    """View a cache as uint8 [blocks, tokens of a block, KV heads, slot bytes].

    That is how vLLM hands it over until 0.28, where a back end states its shape; from 0.29 on the
    heads stand before the tokens.
    """
    states_shape = "get_kv_cache_shape" in vars(turboquant_attn.TurboQuantAttentionBackend)
    return kv_cache if states_shape else kv_cache.transpose(1, 2)


class CpuTurboQuantBackend(SparkTurboQuantBackend):
    @staticmethod
    def get_builder_cls() -> type[CpuTurboQuantBuilder]:
        return CpuTurboQuantBuilder

    @staticmethod
    def get_impl_cls() -> type[CpuTurboQuantImpl]:
        return CpuTurboQuantImpl
