"""The CPU engine's TurboQuant back end: what it is chosen for, where it stores, what it reads."""

from types import SimpleNamespace

import torch
from said import error, refusal
from sparkdeploy_vllm import register
from sparkdeploy_vllm.cpu.engine import TURBOQUANT_PATH
from sparkdeploy_vllm.cpu.turboquant import (
    CpuTurboQuantBackend,
    CpuTurboQuantBuilder,
    CpuTurboQuantImpl,
    CpuTurboQuantMetadata,
    read_slots,
)
from sparkdeploy_vllm.turboquant.format import BITS
from sparkdeploy_vllm.turboquant.reference import (
    attend,
    pack_slots,
    rotate,
    unpack_keys,
    unpack_values,
)
from vllm.platforms.cpu import CpuPlatform

HEADS, KV_HEADS = 4, 2
BLOCK_TOKENS, BLOCKS = 16, 24
NOT_A_NUMBER = 0xFF
"""As every byte of a slot nobody wrote: its FP8 keys, norms, scales and zeros are all NaN."""
FORMATS = [(name, head_dim) for name in BITS for head_dim in (64, 128, 256)]


def _impl(name: str, head_dim: int) -> CpuTurboQuantImpl:
    return CpuTurboQuantImpl(HEADS, head_dim, head_dim**-0.5, KV_HEADS, kv_cache_dtype=name)


def _cache(impl: CpuTurboQuantImpl) -> torch.Tensor:
    """As vLLM hands it over: by head, and each token's heads beside one another in memory."""
    shape = (BLOCKS, BLOCK_TOKENS, KV_HEADS, impl.layout.slot_bytes)
    return torch.full(shape, NOT_A_NUMBER, dtype=torch.uint8).transpose(1, 2)


def _normal(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).bfloat16()


class _Request:
    """Tokens of a request, stored as far as `stored` in blocks far from one another."""

    def __init__(self, impl: CpuTurboQuantImpl, blocks: list[int], seed: int) -> None:
        self.impl, self.blocks = impl, torch.tensor(blocks, dtype=torch.int32)
        tokens = len(blocks) * BLOCK_TOKENS
        self.query = _normal(tokens, HEADS, impl.head_size, seed=seed)
        self.key, self.value = (
            _normal(tokens, KV_HEADS, impl.head_size, seed=seed + add) for add in (100, 200)
        )

    def places(self, tokens: range) -> list[int]:
        return [
            int(self.blocks[it // BLOCK_TOKENS]) * BLOCK_TOKENS + it % BLOCK_TOKENS for it in tokens
        ]

    def store(self, kv_cache: torch.Tensor, tokens: range) -> None:
        rows = slice(tokens.start, tokens.stop)
        mapping = torch.tensor(self.places(tokens))
        self.impl.do_kv_cache_update(None, self.key[rows], self.value[rows], kv_cache, mapping)


def _step(
    kv_cache: torch.Tensor, *batch: tuple[_Request, range], padding: int = 0
) -> list[torch.Tensor]:
    """Store and attend for so many new tokens of each; their outputs. Padding are rows of NaN."""
    impl = batch[0][0].impl
    for request, tokens in batch:
        request.store(kv_cache, tokens)
    whole = {
        part: torch.cat([getattr(it, part)[tokens.start : tokens.stop] for it, tokens in batch])
        for part in ("query", "key", "value")
    }
    count = whole["query"].shape[0]
    padded = {
        part: torch.cat([rows, torch.full((padding, *rows.shape[1:]), torch.nan).bfloat16()])
        for part, rows in whole.items()
    }
    starts = torch.tensor([0, *(len(tokens) for _, tokens in batch)]).cumsum(0)
    # A batch may be padded by requests without tokens.
    starts = torch.cat([starts, starts[-1:]]).to(torch.int32)
    lengths = torch.tensor([*(tokens.stop for _, tokens in batch), 0], dtype=torch.int32)
    width = max(len(request.blocks) for request, _ in batch)
    table = torch.zeros(len(batch) + 1, width, dtype=torch.int32)
    for row, (request, _) in enumerate(batch):
        table[row, : len(request.blocks)] = request.blocks
    output = torch.full_like(padded["query"], 7.0)
    metadata = CpuTurboQuantMetadata(starts, lengths, table)
    got = impl.forward(
        None, padded["query"], padded["key"], padded["value"], kv_cache, metadata, output
    )
    assert got is output
    assert (got[count:] == 7).all()
    return [got[starts[row] : starts[row + 1]] for row in range(len(batch))]


def check_turboquant_on_a_cpu_gets_our_back_end_and_nothing_else_does() -> None:
    register()
    for name in BITS:
        config = SimpleNamespace(kv_cache_dtype=name, use_sparse=False, use_mla=False)
        assert CpuPlatform.get_attn_backend_cls(None, config, num_heads=4) == TURBOQUANT_PATH
    for name in ("auto", "fp8", None):
        config = SimpleNamespace(kv_cache_dtype=name, use_sparse=False, use_mla=False)
        chosen = CpuPlatform.get_attn_backend_cls(None, attn_selector_config=config)
        assert chosen.endswith("CPUAttentionBackend"), chosen
    assert CpuTurboQuantBackend.get_impl_cls() is CpuTurboQuantImpl
    assert CpuTurboQuantBackend.get_builder_cls() is CpuTurboQuantBuilder


def check_tokens_are_stored_in_their_slots_and_padding_nowhere() -> None:
    for name, head_dim in FORMATS:
        impl = _impl(name, head_dim)
        kv_cache, request = _cache(impl), _Request(impl, [9, 2, 17], seed=1)
        rows = slice(0, 37)
        mapping = torch.tensor([*request.places(range(35)), -1, -1])
        impl.do_kv_cache_update(None, request.key[rows], request.value[rows], kv_cache, mapping)
        read = read_slots(kv_cache, request.blocks, 35)
        rows = slice(0, 35)
        wanted = pack_slots(request.key[rows], request.value[rows], impl.layout, impl.centroids)
        assert torch.equal(read, wanted)
        untouched = kv_cache.transpose(1, 2).reshape(BLOCKS * BLOCK_TOKENS, -1).clone()
        untouched[request.places(range(35))] = NOT_A_NUMBER
        assert (untouched == NOT_A_NUMBER).all()


def check_decoding_reads_slots_and_a_fresh_prompt_its_own_keys() -> None:
    for name, head_dim in FORMATS:
        impl = _impl(name, head_dim)
        kv_cache, request = _cache(impl), _Request(impl, [9, 2, 17], seed=1)
        prompt = _step(kv_cache, (request, range(33)))[0]
        raw = (each[:33].double() for each in (request.query, request.key, request.value))
        assert error(prompt, attend(*raw, impl.scale)) < 0.01
        decoded = _step(kv_cache, (request, range(33, 34)))[0]
        slots = read_slots(kv_cache, request.blocks, 34)
        keys = unpack_keys(slots, impl.layout, impl.centroids, torch.float64)
        # Rotated back, where the back end rotates the query.
        keys = rotate(keys) if impl.layout.has_rotated_keys else keys
        values = unpack_values(slots, impl.layout, torch.float64)
        query = request.query[33:34].double()
        assert error(decoded, attend(query, keys, values, impl.scale)) < 0.01


def check_verified_tokens_equal_decoded_ones_bit_for_bit() -> None:
    """Whatever else is in the batch, and with slots of NaN behind each request's last token."""
    for name, head_dim in FORMATS:
        impl = _impl(name, head_dim)
        alone, together = _cache(impl), _cache(impl)
        first, second = (_Request(impl, blocks, seed=it) for it, blocks in ((1, [9, 2]), (2, [5])))
        for kv_cache in (alone, together):
            _step(kv_cache, (first, range(15)))
        reached = 15
        for count in range(1, 9):
            step = range(reached, min(reached + count, 32))
            beside = (second, range(count))
            verified = _step(together, beside, (first, step), padding=3)[1]
            decoded = torch.cat([_step(alone, (first, range(it, it + 1)))[0] for it in step])
            assert torch.equal(verified, decoded), (name, head_dim, count)
            assert torch.isfinite(verified).all()
            # As if all but one were rejected: their slots are written again.
            reached += 1
        assert torch.equal(
            read_slots(alone, first.blocks, 30), read_slots(together, first.blocks, 30)
        )


def check_other_heads_and_what_turboquant_ignores_are_refused() -> None:
    for head_dim, further, said in (
        (96, {}, "heads of 96 dimensions"),
        (128, {"sliding_window": 64}, "sliding_window"),
        (128, {"sinks": torch.zeros(HEADS)}, "sinks"),
    ):
        given = {"kv_cache_dtype": "turboquant_4bit_nc", **further}
        told = refusal(CpuTurboQuantImpl, HEADS, head_dim, 1.0, KV_HEADS, **given)
        assert said in told, told
