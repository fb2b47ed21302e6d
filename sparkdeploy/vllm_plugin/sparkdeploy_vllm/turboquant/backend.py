"""The TurboQuant back end: correct under speculation, and with a decode kernel bound by memory.

vLLM's builder claims full graphs for any uniform batch, but verifies speculative tokens in a Python
loop over requests whose lengths a captured graph freezes: silent garbage with MTP (vLLM 0.20 to
0.33). Here every request of a few tokens decodes, by what the device says of its length and of
where its tokens begin: one launch for all of them (decode.py), or, for a layer
that the kernel does not take, vLLM's own with a row for each token. Nothing is looked up on the
host, so captured graphs are right; they are claimed for the releases where that was proven.
"""

from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from vllm.config import get_current_vllm_config
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends import turboquant_attn
from vllm.v1.worker.workspace import current_workspace_manager, is_workspace_manager_initialized

from sparkdeploy_vllm.announce import announce_choice, warn_once
from sparkdeploy_vllm.check.releases import TURBOQUANT_FULL_GRAPHS, installed_version, release_of
from sparkdeploy_vllm.tuning.tiles import choose
from sparkdeploy_vllm.turboquant.format import BITS, slot_format


class SparkTurboQuantBuilder(turboquant_attn.TurboQuantMetadataBuilder):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)
        _reserve_scratch(self.vllm_config, self.kv_cache_spec)

    @classmethod
    def get_cudagraph_support(cls, vllm_config: Any, kv_cache_spec: Any) -> AttentionCGSupport:
        is_proven = release_of(installed_version()) in TURBOQUANT_FULL_GRAPHS
        if getattr(vllm_config, "speculative_config", None) is not None and not is_proven:
            return AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
        return super().get_cudagraph_support(vllm_config, kv_cache_spec)

    def build(self, *args: Any, **kwargs: Any) -> turboquant_attn.TurboQuantMetadata:
        metadata = super().build(*args, **kwargs)
        return replace(metadata, is_prefill=metadata.num_actual_tokens > metadata.num_decode_tokens)


IGNORED = ("alibi_slopes", "sliding_window", "logits_soft_cap", "sinks")
"""What a layer may ask of attention and TurboQuant takes, but computes without on NVIDIA's GPUs."""


class SparkTurboQuantImpl(turboquant_attn.TurboQuantAttentionImpl):
    """vLLM's attention, held to what its scratch memory and its shortcut were made for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse_what_is_ignored(*args, **kwargs)
        super().__init__(*args, **kwargs)
        config = get_current_vllm_config()
        self.most_rows = config.scheduler_config.max_num_seqs
        """vLLM reserves its scratch memory for this many rows, and no more may be taken later."""
        self.most_tokens = most_query_tokens(config)
        if getattr(self, "fa_version", None) == 2:
            self.fa_version = prompts_version()
        self.kernel = _kernel_of(self)

    def _decode_attention(
        self, query: Tensor, kv_cache: Tensor, attn_metadata: Any, *rest: Any, **named: Any
    ) -> Tensor:
        # As many as one may have. vLLM's forward makes new metadata of a batch's decoding part and
        # says one there, whatever it is; such metadata count no decoding requests.
        tokens = attn_metadata.max_query_len if attn_metadata.num_decodes else self.most_tokens
        if self.kernel is not None and self.kernel.serves(query, kv_cache, tokens):
            return self.kernel.decode(query, kv_cache, attn_metadata, tokens)
        metadata = one_row_a_token(attn_metadata, query.shape[0])
        return self._decode_in_parts(query, kv_cache, metadata, *rest, **named)

    def _decode_in_parts(
        self, query: Tensor, kv_cache: Tensor, metadata: Any, *rest: Any, **named: Any
    ) -> Tensor:
        decode, count = super()._decode_attention, query.shape[0]
        if count <= self.most_rows:
            return decode(query, kv_cache, metadata, *rest, **named)
        output = torch.empty_like(query)
        for start in range(0, count, self.most_rows):
            rows = slice(start, start + self.most_rows)
            lengths, table = metadata.seq_lens[rows], metadata.block_table[rows]
            part = replace(metadata, seq_lens=lengths, block_table=table)
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


def prompts_version() -> int:
    """FlashAttention's version for prompts on this card: 3 on Hopper, of which 2 uses a half.

    Where a cache is TurboQuant's, vLLM says 2 to all layers, for the sake of those that keep 16
    bits and have a class of their own.
    """
    # Not in every build of vLLM.
    from vllm.vllm_flash_attn.flash_attn_interface import is_fa_version_supported

    is_hopper = torch.cuda.get_device_capability()[0] == 9
    return 3 if is_hopper and is_fa_version_supported(3) else 2


def refuse_what_is_ignored(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return a layer's arguments by name; ValueError for what TurboQuant would leave out."""
    wanted = signature(turboquant_attn.TurboQuantAttentionImpl).bind(*args, **kwargs).arguments
    wanted |= wanted.pop("kwargs", {})
    if asked := [name for name in IGNORED if not _says_none(wanted.get(name))]:
        raise ValueError(
            f"sparkdeploy: this model's attention has {' and '.join(asked)}, which vLLM's "
            "TurboQuant ignores: the text would be wrong; serve it with kv_cache_dtype: auto or fp8"
        )
    return dict(wanted)


def _says_none(value: object) -> bool:
    # vLLM's models say "no window" and "no cap" by None, zero or a negative number.
    return value is None or (isinstance(value, int | float) and value <= 0)


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


def one_row_a_token(metadata: Any, tokens: int) -> Any:
    """`metadata` of requests that decode, as if each of the batch's tokens were one of them.

    Every length is taken from the device: with asynchronous scheduling the host's lengths count
    drafts that were rejected.
    """
    if tokens == metadata.seq_lens.shape[0] and metadata.max_query_len <= 1:
        return metadata
    row, length = decode_rows(metadata.seq_lens, metadata.query_start_loc, tokens)
    return replace(metadata, seq_lens=length, block_table=metadata.block_table[row])


def most_query_tokens(vllm_config: Any) -> int:
    """The most tokens of a request that counts as decoding: the builder's threshold, or more.

    These are a token without a draft and its drafts. vLLM's first model runner lets a drafter that
    drafts in parallel append as many places again.
    """
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is None:
        return 1
    times = 2 if getattr(speculative, "parallel_drafting", False) else 1
    return 1 + times * int(speculative.num_speculative_tokens or 0)


class DecodeKernel:
    """The kernel for one layer: its sizes, its tile, and the scratch memory that vLLM lends."""

    def __init__(self, attention: Any, tile: Any) -> None:
        # A machine without CUDA's bindings must be able to import this module.
        from sparkdeploy_vllm.turboquant import decode, proof

        self.kernels, self.proof = decode, proof
        self.faults: dict[tuple[Any, ...], str | None] = {}
        self.attention = attention
        self.tile = tile
        """Chosen while the layer is made: no forward pass and no capture looks at a file."""

    def serves(self, query: Tensor, kv_cache: Tensor, tokens: int) -> bool:
        """Whether the tensors lie as the kernel reads them, and it was right on this card.

        The first call that is not captured finds that out; vLLM makes one before each capture.
        """
        if not self.kernels.takes(self.attention, query, kv_cache):
            _say_vllm_s_kernel_serves(
                "ours does not take a cache "
                f"{tuple(kv_cache.shape)} with strides {kv_cache.stride()}, queries {query.dtype} "
                f"with strides {query.stride()}"
            )
            return False
        question = (self.attention, self.tile, kv_cache.shape[1], query.dtype, tokens, query.device)
        if question not in self.faults:
            if torch.cuda.is_current_stream_capturing():
                return False
            self.faults[question] = self.proof.first_fault(*question)
        fault = self.faults[question]
        if fault is not None:
            _say_vllm_s_kernel_serves(f"ours failed: {fault}")
        return fault is None

    def decode(self, query: Tensor, kv_cache: Tensor, metadata: Any, tokens: int) -> Tensor:
        """[T, H, D] like `query`; `tokens` is the most that a request of `metadata` has."""
        starts = metadata.query_start_loc
        requests = self.kernels.Requests(metadata.seq_lens, starts, metadata.block_table, tokens)
        allocate = partial(_floats, query.device)
        scratch = self.kernels.scratch_of(self.attention, self.tile, query, requests, allocate)
        output = torch.empty_like(query)
        return self.kernels.decode_attention(
            self.attention, query, kv_cache, requests, output, scratch, self.tile
        )


def _floats(device: torch.device, *shapes: tuple[int, ...]) -> list[Tensor]:
    """FP32 of these shapes, from the scratch memory that all layers share where there is one."""
    if is_workspace_manager_initialized():
        lent = current_workspace_manager().get_simultaneous(*((s, torch.float32) for s in shapes))
        return list(lent)
    return [torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes]


def _kernel_of(layer: SparkTurboQuantImpl) -> DecodeKernel | None:
    """The kernel of a layer, None where vLLM's own serves it; which of the two, in the log once."""
    slot = slot_format(layer.kv_cache_dtype, layer.head_size)
    try:
        from sparkdeploy_vllm.turboquant import decode

        attention = decode.AttentionLayer(slot, layer.num_heads, layer.num_kv_heads, layer.scale)
        device = torch.device("cuda", torch.cuda.current_device())
        # Asks for the card and the compiler: without either there is no kernel.
        key = decode.key_of(attention, layer.most_tokens, device)
        why_not = decode.unfit(attention, key.capability, layer.most_tokens)
    except (ImportError, RuntimeError, AssertionError) as error:
        why_not = str(error)
    if why_not is not None:
        _say_vllm_s_kernel_serves(why_not)
        return None
    choice = choose(key)
    announce_choice(choice)
    return DecodeKernel(attention, choice.tiles[0])


def _say_vllm_s_kernel_serves(why: str) -> None:
    warn_once(f"sparkdeploy: TurboQuant decodes by vLLM's own kernel: {why}")


def _reserve_scratch(vllm_config: Any, kv_cache_spec: Any) -> None:
    """Ask for the kernel's scratch memory before vLLM forbids it to grow."""
    cache_dtype = vllm_config.cache_config.cache_dtype
    if not is_workspace_manager_initialized() or cache_dtype not in BITS:
        return
    heads = vllm_config.model_config.get_num_attention_heads(vllm_config.parallel_config)
    blocks = max(_multiprocessors(), vllm_config.scheduler_config.max_num_seqs)
    cells = most_query_tokens(vllm_config) * heads * blocks
    current_workspace_manager().get_simultaneous(
        ((cells, kv_cache_spec.head_size), torch.float32), ((cells,), torch.float32)
    )


def _multiprocessors() -> int:
    if not torch.cuda.is_available():
        return 1
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
