"""Holds the decode kernel against plain torch on the card that serves, before anybody is served.

A kernel is right on the cards it was run on. Where an engine starts on another one, or with another
compiler, this finds out: a few short requests over random keys and values, in a fraction of a
second, compared with the same attention in FP32. It compiles what serving needs as well, so that no
request waits for it.
"""

from functools import cache, partial

import torch
from torch import Tensor

from sparkdeploy_vllm.kernels.turboquant_decode import (
    AttentionLayer,
    Requests,
    decode_attention,
    scratch_of,
)
from sparkdeploy_vllm.kernels.turboquant_tiles import AttentionTile
from sparkdeploy_vllm.turboquant_maths import (
    attend_slots,
    pack_slots,
)

TOLERANCE = 0.01
"""Relative error that is taken for rounding; BF16's own is 0.002."""
SEED = 1


@cache
def first_fault(
    attention: AttentionLayer,
    tile: AttentionTile,
    page: int,
    dtype: torch.dtype,
    tokens: int,
    device: torch.device,
) -> str | None:
    """What is wrong with the kernel for requests of up to `tokens` queries; None if nothing is.

    Compiles and runs it over pages of `page` tokens. Not while a CUDA graph is captured: it waits
    for the card.
    """
    try:
        error = _relative_error(attention, tile, page, dtype, tokens, device)
    except Exception as fault:  # noqa: BLE001 - whatever it is, vLLM's own kernel serves
        return f"{type(fault).__name__}: {fault}"
    if not error < TOLERANCE:
        return f"its results are off by {error:.2g} of their size"
    return None


def _relative_error(
    attention: AttentionLayer,
    tile: AttentionTile,
    page: int,
    dtype: torch.dtype,
    tokens: int,
    device: torch.device,
) -> float:
    drawn = torch.Generator(device).manual_seed(SEED)
    lengths = (tokens, 5 * page + 3 + tokens, 17 + tokens)
    pages, table = _pages(attention, lengths, page, drawn)
    size = (len(lengths) * tokens, attention.query_heads, attention.slot.head_dim)
    query = _random(size, drawn).to(dtype)
    result = _kernel_s(attention, tile, query, pages, (lengths, table, tokens))
    expected = torch.cat(
        [
            _expected(attention, query[first : first + tokens], pages, row, length)
            for first, row, length in zip(
                range(0, size[0], tokens), table.long(), lengths, strict=True
            )
        ]
    )
    return float((result.float() - expected).norm() / expected.norm())


def _pages(
    attention: AttentionLayer, lengths: tuple[int, ...], page: int, drawn: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random slots uint8 [blocks, page, KV heads, slot bytes], and tables int32 [R, blocks]."""
    width = max(-(-length // page) for length in lengths)
    blocks = len(lengths) * width
    size = (blocks, page, attention.kv_heads, attention.slot.head_dim)
    keys, values = (_random(size, drawn) for _ in range(2))
    slots = pack_slots(keys, values, attention.slot, _centroids(attention, drawn.device))
    order = torch.randperm(blocks, device=drawn.device, generator=drawn)
    return slots.contiguous(), order.view(len(lengths), width).int()


def _random(size: tuple[int, ...], drawn: torch.Generator) -> Tensor:
    # vLLM changes torch's default dtype while it makes a model.
    return torch.randn(size, dtype=torch.float32, device=drawn.device, generator=drawn)


def _kernel_s(
    attention: AttentionLayer,
    tile: AttentionTile,
    query: Tensor,
    pages: Tensor,
    asked: tuple[tuple[int, ...], Tensor, int],
) -> Tensor:
    lengths, table, tokens = asked
    starts = torch.arange(len(lengths) + 1, device=query.device, dtype=torch.int32) * tokens
    known = torch.tensor(lengths, device=query.device, dtype=torch.int32)
    requests = Requests(known, starts, table, tokens)
    scratch = scratch_of(attention, query, requests, partial(_floats, query.device))
    return decode_attention(
        attention, query, pages, requests, torch.empty_like(query), scratch, tile
    )


def _floats(device: torch.device, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.empty(shape, dtype=torch.float32, device=device) for shape in shapes]


def _expected(
    attention: AttentionLayer, query: Tensor, pages: Tensor, row: Tensor, length: int
) -> Tensor:
    slots = pages[row].flatten(0, 1)[:length]
    centroids = _centroids(attention, pages.device)
    return attend_slots(query.float(), slots, attention.slot, centroids, attention.scale)


def _centroids(attention: AttentionLayer, device: torch.device) -> Tensor:
    """Those that vLLM reads and writes codes by."""
    from vllm.model_executor.layers.quantization.turboquant.centroids import get_centroids

    slot = attention.slot
    bits = slot.key_bits if slot.has_rotated_keys else slot.value_bits
    return get_centroids(slot.head_dim, bits).to(device, torch.float32)
