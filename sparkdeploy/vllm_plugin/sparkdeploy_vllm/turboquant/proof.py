"""Holds the decode kernel against plain torch on the card that serves, before anybody is served.

A kernel is right on the cards it was run on. Where an engine starts on another one, or with another
compiler, this finds out: a few short requests over random keys and values, in a fraction of a
second, compared with the same attention in FP32. It compiles what serving needs as well, so that no
request waits for it.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from sparkdeploy_vllm.turboquant.decode import (
    AttentionLayer,
    Requests,
    Scratch,
    decode_attention,
    scratch_of,
)
from sparkdeploy_vllm.turboquant.reference import attend_slots, pack_slots
from sparkdeploy_vllm.turboquant.tiles import AttentionTile

TOLERANCE = 0.01
"""Relative error that is taken for rounding; BF16's own is 0.002."""
SEED = 1


class Question(NamedTuple):
    """Queries [T, H, D] of requests over uint8 [blocks, page, KV heads, slot bytes]."""

    query: Tensor
    pages: Tensor
    requests: Requests


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
        lengths = (tokens, 5 * page + 3 + tokens, 17 + tokens)
        question = draw(attention, lengths, page, dtype, tokens, device)
        result = torch.empty_like(question.query)
        attend(attention, tile, question, result, scratch(attention, tile, question, 0.0))
        expected = exact(attention, question, torch.float32)
        error = float((result.float() - expected).norm() / expected.norm())
    except Exception as fault:  # noqa: BLE001 - whatever it is, vLLM's own kernel serves
        return f"{type(fault).__name__}: {fault}"
    if not error < TOLERANCE:
        return f"its results are off by {error:.2g} of their size"
    return None


def draw(
    attention: AttentionLayer,
    lengths: Sequence[int],
    page: int,
    dtype: torch.dtype,
    tokens: int,
    device: torch.device,
) -> Question:
    """Random requests of such lengths that end in `tokens` queries, their pages in mixed order."""
    drawn = torch.Generator(device).manual_seed(SEED)
    pages, table = draw_pages(attention, lengths, page, drawn)
    size = (len(lengths) * tokens, attention.query_heads, attention.slot.head_dim)
    starts = torch.arange(len(lengths) + 1, device=device, dtype=torch.int32) * tokens
    known = torch.tensor(lengths, device=device, dtype=torch.int32)
    return Question(_random(size, drawn).to(dtype), pages, Requests(known, starts, table, tokens))


def draw_pages(
    attention: AttentionLayer, lengths: Sequence[int], page: int, drawn: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random slots uint8 [blocks, page, KV heads, slot bytes], and tables int32 [R, blocks]."""
    width = max(-(-length // page) for length in lengths)
    blocks = len(lengths) * width
    size = (blocks, page, attention.kv_heads, attention.slot.head_dim)
    keys, values = (_random(size, drawn) for _ in range(2))
    slots = pack_slots(keys, values, attention.slot, centroids(attention, drawn.device))
    order = torch.randperm(blocks, device=drawn.device, generator=drawn)
    return slots.contiguous(), order.view(len(lengths), width).int()


def exact(attention: AttentionLayer, question: Question, dtype: torch.dtype) -> Tensor:
    """[T, H, D] by plain torch in FP32 or FP64, from the slots alone."""
    requests, known = question.requests, centroids(attention, question.pages.device)
    asked = question.query.to(dtype).split(requests.most_tokens)
    rows = zip(asked, requests.table.long(), requests.lengths.tolist(), strict=True)
    slots = ((queries, question.pages[row].flatten(0, 1)[:length]) for queries, row, length in rows)
    return torch.cat([attend_slots(*it, attention.slot, known, attention.scale) for it in slots])


def attend(
    attention: AttentionLayer, tile: AttentionTile, question: Question, out: Tensor, into: Scratch
) -> None:
    decode_attention(attention, *question, out, into, tile)


def scratch(
    attention: AttentionLayer, tile: AttentionTile, question: Question, filled_with: float
) -> Scratch:
    def allocate(*shapes: tuple[int, ...]) -> list[Tensor]:
        kind = {"dtype": torch.float32, "device": question.query.device}
        return [torch.full(shape, filled_with, **kind) for shape in shapes]

    return scratch_of(attention, tile, question.query, question.requests, allocate)


def centroids(attention: AttentionLayer, device: torch.device) -> Tensor:
    """Those that vLLM reads and writes codes by."""
    from vllm.model_executor.layers.quantization.turboquant.centroids import get_centroids

    slot = attention.slot
    bits = slot.key_bits if slot.has_rotated_keys else slot.value_bits
    return get_centroids(slot.head_dim, bits).to(device, torch.float32)


def _random(size: tuple[int, ...], drawn: torch.Generator) -> Tensor:
    # vLLM changes torch's default dtype while it makes a model.
    return torch.randn(size, dtype=torch.float32, device=drawn.device, generator=drawn)
