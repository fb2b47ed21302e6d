"""Runs tiles of the TurboQuant kernel on a CUDA card: are they right, and how long do they take?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sparkdeploy_vllm.kernels.cuda_timing import captured, median_ms, shared_bytes_limit
from sparkdeploy_vllm.kernels.tile_tuning import Card
from sparkdeploy_vllm.kernels.turboquant_choice import shipped_choice
from sparkdeploy_vllm.kernels.turboquant_decode import (
    CENTROIDS,
    AttentionLayer,
    Requests,
    Scratch,
    decode_attention,
    key_of,
    scratch_of,
)
from sparkdeploy_vllm.kernels.turboquant_tiles import AttentionTile
from sparkdeploy_vllm.kernels.turboquant_tiles_file import AttentionKey
from sparkdeploy_vllm.turboquant_maths import (
    attend_slots,
    pack_slots,
)

PAGE_TOKENS = 64
"""Of the pages that are timed."""
CHECKED_PAGES = (16, PAGE_TOKENS)
"""The smallest make a round of copies of the most pieces."""
DTYPE = torch.bfloat16
ROUNDING = 2.0**-8
"""Relative error that rounding to BF16 may add to a row. A token of the longest request left
out adds 0.04 or more to some row: ten times that."""
DRAWN_TOKENS = 4096
"""Slots that are drawn; a larger pool repeats them."""
CHECKED_LENGTHS = (333, 1021)
"""Beside a request that has its query tokens and no others; none fills a page or a tile."""
L2_BYTES = 128 * 1024 * 1024
"""Assumed where torch does not say."""
CENTROID_FACTORS = {3: 0.63033915, 4: 0.43339555}
"""What the kernel's centroids of N(0, 1) were multiplied by."""


@dataclass(frozen=True, slots=True)
class Question:
    """Queries [T, H, D] of requests over uint8 [blocks, page, KV heads, slot bytes]."""

    query: Tensor
    pages: Tensor
    requests: Requests


class AttentionStand:
    """A `Stand` with pages of several layers, twice what the L2 cache holds and two at least."""

    def __init__(self, attention: AttentionLayer, most_tokens: int) -> None:
        self.attention = attention
        self.most_tokens = most_tokens
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.drawn = torch.Generator(self.device).manual_seed(1)
        self.centroids = _centroids(attention.slot.key_bits, attention.slot.head_dim, self.device)
        self.slots = self._draw_slots()
        lengths = [most_tokens, *CHECKED_LENGTHS]
        checked = [self._question(lengths, page) for page in CHECKED_PAGES]
        self._known = [(question, self._exact(question)) for question in checked]

    @property
    def key(self) -> AttentionKey:
        return key_of(self.attention, self.most_tokens, self.device)

    @property
    def card(self) -> Card[AttentionTile]:
        key = self.key
        return Card(key.capability, shared_bytes_limit(self.device), (shipped_choice(key).tiles,))

    def is_right(self, tile: AttentionTile) -> bool:
        try:
            return all(self._gives(tile, question, exact) for question, exact in self._known)
        except Exception:  # noqa: BLE001 - a compiler has many ways to refuse a tile
            return False

    def times_ms(self, tiles: Sequence[AttentionTile], context: int, rounds: int) -> list[float]:
        question = self._question([context], PAGE_TOKENS)
        layers = self._layers_of(context)
        out, scratch = torch.empty_like(question.query), self._scratch(question, 0.0)

        def graph_of(tile: AttentionTile) -> torch.cuda.CUDAGraph:
            def launch(turn: int) -> None:
                asked = replace(question, pages=layers[turn])
                self._decode(tile, asked, out, scratch)

            return captured(launch, len(layers))

        graphs = [graph_of(tile) for tile in tiles]
        return [ms / len(layers) for ms in median_ms(graphs, rounds)]

    def _draw_slots(self) -> Tensor:
        """uint8 [tokens, KV heads, slot bytes]"""
        attention = self.attention
        size = (DRAWN_TOKENS, attention.kv_heads, attention.slot.head_dim)
        keys, values = (
            torch.randn(size, device=self.device, generator=self.drawn) for _ in range(2)
        )
        return pack_slots(keys, values, attention.slot, self.centroids)

    def _layers_of(self, context: int) -> list[Tensor]:
        """Pages of layers with so many tokens each, as many as L2 does not hold."""
        token_bytes = self.slots[0].numel()
        about = torch.cuda.get_device_properties(self.device)
        l2_bytes = getattr(about, "L2_cache_size", 0) or L2_BYTES
        count = max(2, -(-2 * l2_bytes // (context * token_bytes)))
        pool = self.slots.repeat(-(-count * context // DRAWN_TOKENS), 1, 1)[: count * context]
        pages = pool.unflatten(0, (count, context // PAGE_TOKENS, PAGE_TOKENS))
        return list(pages.unbind(0))

    def _question(self, lengths: list[int], page: int) -> Question:
        """Requests that end in their query tokens, and whose pages lie in a mixed order."""
        attention, tokens = self.attention, self.most_tokens
        size = (len(lengths) * tokens, attention.query_heads, attention.slot.head_dim)
        query = torch.randn(size, device=self.device, generator=self.drawn).to(DTYPE)
        counts = [-(-length // page) for length in lengths]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(7))
        rows = [row.tolist() for row in order.split(counts)]
        table = [row + [0] * (max(counts) - len(row)) for row in rows]
        starts = list(range(0, size[0] + 1, tokens))
        on_card = partial(torch.tensor, dtype=torch.int32, device=self.device)
        requests = Requests(on_card(lengths), on_card(starts), on_card(table), tokens)
        return Question(query, self.slots.unflatten(0, (-1, page)), requests)

    def _exact(self, question: Question) -> Tensor:
        """FP64 [T, H, D], from the slots alone."""
        attention, requests = self.attention, question.requests
        asked = question.query.double().split(self.most_tokens)
        found = []
        for number, length in enumerate(requests.lengths.tolist()):
            slots = question.pages[requests.table[number].long()].flatten(0, 1)[:length]
            found.append(
                attend_slots(asked[number], slots, attention.slot, self.centroids, attention.scale)
            )
        return torch.cat(found)

    def _gives(self, tile: AttentionTile, question: Question, exact: Tensor) -> bool:
        """Whether the kernel gives this, twice the same. What it does not write is no number."""
        first, second = (torch.full_like(question.query, torch.nan) for _ in range(2))
        for out in (first, second):
            self._decode(tile, question, out, self._scratch(question, torch.nan))
        error = (first.double() - exact).norm(dim=-1) / exact.norm(dim=-1)
        return bool((error < ROUNDING).all()) and torch.equal(first, second)

    def _decode(
        self, tile: AttentionTile, question: Question, out: Tensor, scratch: Scratch
    ) -> None:
        query, pages, requests = question.query, question.pages, question.requests
        decode_attention(self.attention, query, pages, requests, out, scratch, tile)

    def _scratch(self, question: Question, filled_with: float) -> Scratch:
        def allocate(*shapes: tuple[int, ...]) -> list[Tensor]:
            return [torch.full(shape, filled_with, device=self.device) for shape in shapes]

        return scratch_of(self.attention, question.query, question.requests, allocate)


def _centroids(key_bits: int, head_dim: int, device: torch.device) -> Tensor:
    """FP32 [2^bits], ascending, of a unit vector's coordinates; none for keys of FP8."""
    if key_bits not in CENTROIDS:
        return torch.empty(0, device=device)
    bits = torch.tensor(CENTROIDS[key_bits], dtype=torch.int16, device=device)
    positive = bits.view(torch.float16).float() / (CENTROID_FACTORS[key_bits] * head_dim**0.5)
    return torch.cat([-positive.flip(0), positive])
