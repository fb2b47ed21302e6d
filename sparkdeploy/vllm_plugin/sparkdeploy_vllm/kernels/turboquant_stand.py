"""Runs tiles of the TurboQuant kernel on a CUDA card: are they right, and how long do they take?"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from sparkdeploy_vllm.kernels.cuda_timing import captured, median_ms, shared_bytes_limit
from sparkdeploy_vllm.kernels.tile_tuning import Card
from sparkdeploy_vllm.kernels.turboquant_choice import shipped_choice
from sparkdeploy_vllm.kernels.turboquant_decode import (
    CENTROIDS,
    Attention,
    Requests,
    Scratch,
    decode_attention,
    key_of,
    multiprocessors,
    scratch_shapes,
    splits_of,
)
from sparkdeploy_vllm.kernels.turboquant_tiles import AttentionTile
from sparkdeploy_vllm.kernels.turboquant_tiles_file import AttentionKey
from sparkdeploy_vllm.turboquant_maths import (
    attend,
    pack_slots,
    rotated_queries,
    unpack_keys,
    unpack_values,
)

PAGE_TOKENS = 64
DTYPE = torch.bfloat16
ROUNDING = 2.0**-8
"""Relative error that rounding to BF16 may add to a row. A token too many or too few of a thousand
adds about 0.03."""
DRAWN_TOKENS = 4096
"""Slots that are drawn; a larger pool repeats them."""
CHECKED_LENGTHS = (333, 1021)
"""Beside a request that has its query tokens and no others; none fills a page or a tile."""
L2_BYTES = 128 * 1024 * 1024
"""Assumed where torch does not say."""
CENTROID_FACTORS = {3: 0.63033915, 4: 0.43339555}
"""What the kernel's centroids of N(0, 1) were multiplied by."""


class AttentionStand:
    """A `Stand` with pages of several layers, twice what the L2 cache holds and two at least."""

    def __init__(self, attention: Attention, most_tokens: int) -> None:
        self.attention = attention
        self.most_tokens = most_tokens
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.drawn = torch.Generator(self.device).manual_seed(1)
        self.centroids = _centroids(attention.slot.key_bits, attention.slot.head_dim, self.device)
        self.pages = self._draw_pages()
        self._checked = self._question([most_tokens, *CHECKED_LENGTHS])
        self._exact = self._exact_result()

    @property
    def key(self) -> AttentionKey:
        return key_of(self.attention, self.most_tokens, self.device)

    @property
    def card(self) -> Card[AttentionTile]:
        key = self.key
        return Card(key.capability, shared_bytes_limit(self.device), (shipped_choice(key).tiles,))

    def is_right(self, tile: AttentionTile) -> bool:
        try:
            first, second = (self._attended(tile) for _ in range(2))
        except Exception:  # noqa: BLE001 - a compiler has many ways to refuse a tile
            return False
        error = (first.double() - self._exact).norm(dim=-1) / self._exact.norm(dim=-1)
        return bool((error < ROUNDING).all()) and torch.equal(first, second)

    def times_ms(self, tiles: Sequence[AttentionTile], context: int, rounds: int) -> list[float]:
        layers = self._layers_of(context)
        query, requests = self._question([context])
        out, scratch = torch.empty_like(query), self._scratch(requests, 0.0)

        def launched(tile: AttentionTile) -> torch.cuda.CUDAGraph:
            return captured(
                lambda turn: decode_attention(
                    self.attention, query, layers[turn], requests, out, scratch, tile
                ),
                len(layers),
            )

        graphs = [launched(tile) for tile in tiles]
        return [ms / len(layers) for ms in median_ms(graphs, rounds)]

    def _draw_pages(self) -> Tensor:
        """uint8 [blocks, page, KV heads, slot bytes]: drawn slots."""
        attention = self.attention
        size = (DRAWN_TOKENS, attention.kv_heads, attention.slot.head_dim)
        keys, values = (
            torch.randn(size, device=self.device, generator=self.drawn) for _ in range(2)
        )
        slots = pack_slots(keys, values, attention.slot, self.centroids)
        return slots.view(-1, PAGE_TOKENS, *slots.shape[1:])

    def _layers_of(self, context: int) -> list[Tensor]:
        """Pages of layers with so many tokens each, as many as L2 does not hold."""
        token_bytes = self.attention.kv_heads * self.attention.slot.slot_bytes
        about = torch.cuda.get_device_properties(self.device)
        l2_bytes = getattr(about, "L2_cache_size", 0) or L2_BYTES
        count = max(2, -(-2 * l2_bytes // (context * token_bytes)))
        copies = -(-count * context // DRAWN_TOKENS)
        pool = self.pages.repeat(copies, 1, 1, 1)
        blocks = context // PAGE_TOKENS
        return [pool[layer * blocks : (layer + 1) * blocks] for layer in range(count)]

    def _question(self, lengths: list[int]) -> tuple[Tensor, Requests]:
        """Queries [T, H, D] of requests whose pages lie in a mixed order."""
        attention, tokens = self.attention, self.most_tokens
        size = (len(lengths) * tokens, attention.query_heads, attention.slot.head_dim)
        query = torch.randn(size, device=self.device, generator=self.drawn).to(DTYPE)
        counts = [-(-length // PAGE_TOKENS) for length in lengths]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(7))
        rows = [row.tolist() for row in order.split(counts)]
        table = [row + [0] * (max(counts) - len(row)) for row in rows]
        starts = list(range(0, size[0] + 1, tokens))
        on_card = partial(torch.tensor, dtype=torch.int32, device=self.device)
        return query, Requests(on_card(lengths), on_card(starts), on_card(table), tokens)

    def _exact_result(self) -> Tensor:
        """FP64 [T, H, D] of the checked question, from the slots alone."""
        (query, requests), slot = self._checked, self.attention.slot
        asked = rotated_queries(query.double(), slot).split(self.most_tokens)
        found = []
        for number, length in enumerate(requests.lengths.tolist()):
            slots = self.pages[requests.table[number].long()].flatten(0, 1)[:length]
            keys = unpack_keys(slots, slot, self.centroids, torch.float64)
            values = unpack_values(slots, slot, torch.float64)
            found.append(attend(asked[number], keys, values, self.attention.scale))
        return torch.cat(found)

    def _attended(self, tile: AttentionTile) -> Tensor:
        """What the kernel says; what it does not write is no number."""
        query, requests = self._checked
        out, scratch = torch.full_like(query, torch.nan), self._scratch(requests, torch.nan)
        decode_attention(self.attention, query, self.pages, requests, out, scratch, tile)
        torch.cuda.synchronize()
        return out

    def _scratch(self, requests: Requests, filled_with: float) -> Scratch:
        count = requests.lengths.shape[0]
        splits = splits_of(self.attention, count, self.most_tokens, multiprocessors(self.device))
        shapes = scratch_shapes(self.attention, count * self.most_tokens, splits)
        return Scratch(*(torch.full(shape, filled_with, device=self.device) for shape in shapes))


def _centroids(key_bits: int, head_dim: int, device: torch.device) -> Tensor:
    """FP32 [2^bits], ascending, of a unit vector's coordinates; none for keys of FP8."""
    if key_bits not in CENTROIDS:
        return torch.empty(0, device=device)
    bits = torch.tensor(CENTROIDS[key_bits], dtype=torch.int16, device=device)
    positive = bits.view(torch.float16).float() / (CENTROID_FACTORS[key_bits] * head_dim**0.5)
    return torch.cat([-positive.flip(0), positive])
