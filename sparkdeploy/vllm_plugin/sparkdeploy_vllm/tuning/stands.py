"""Runs tiles of a head, or of attention, on a CUDA card: are they right, how long do they take?"""

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from sparkdeploy_vllm.head.int4_reference import unpack_head
from sparkdeploy_vllm.head.kernel import LOGITS_DTYPE, head_with_tile, key_of, shape_of
from sparkdeploy_vllm.head.tiles import HeadKey, HeadTile, Weights
from sparkdeploy_vllm.turboquant import decode, proof
from sparkdeploy_vllm.turboquant.decode import AttentionLayer
from sparkdeploy_vllm.turboquant.proof import Question
from sparkdeploy_vllm.turboquant.tiles import AttentionKey, AttentionTile
from sparkdeploy_vllm.weights.conversion import INT4_GROUP
from sparkdeploy_vllm.weights.reference import row_chunks

PAUSE_S = 0.01
"""Rest before each replay: without it a big card runs into its power limit and slows down."""
SMALLEST_LIMIT_BYTES = 99 * 1024
SUMMATION = 1e-5
"""Relative error that the order and width of FP32 sums on tensor cores may add."""
LAUNCHES = 8
DTYPE = torch.bfloat16

PAGE_TOKENS = 64
CHECKED_PAGES = (16, PAGE_TOKENS)
"""The smallest make a round of copies of the most pieces."""
ROUNDING = 2.0**-8
"""Relative error that rounding to BF16 may add to a row. A token of the longest request left
out adds 0.04 or more to some row: ten times that."""
DRAWN_TOKENS = 4096
CHECKED_LENGTHS = (333, 1021)
"""Beside a request that has its query tokens and no others; none fills a page or a tile."""
L2_BYTES = 128 * 1024 * 1024
"""Assumed where torch does not say."""

Tile = TypeVar("Tile")


class CudaStand(ABC, Generic[Tile]):
    """What the search asks of a card; tiles are timed as they run in a captured graph."""

    @property
    def shared_bytes(self) -> int:
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        return getattr(about, "shared_memory_per_block_optin", SMALLEST_LIMIT_BYTES)

    def is_right(self, tile: Tile) -> bool:
        try:
            return self._is_exact(tile)
        except Exception:  # noqa: BLE001 - a compiler has many ways to refuse a tile
            return False

    def times_ms(self, tiles: Sequence[Tile], size: int, rounds: int) -> list[float]:
        launches, launch = self._launches(size)
        graphs = [_captured(launch, tile, launches) for tile in tiles]
        times: list[list[float]] = [[] for _ in graphs]
        for _ in range(rounds):
            for graph, own in zip(graphs, times, strict=True):
                own.append(_replay_ms(graph))
        return [statistics.median(own) / launches for own in times]

    @abstractmethod
    def _is_exact(self, tile: Tile) -> bool: ...

    @abstractmethod
    def _launches(self, size: int) -> tuple[int, Callable[[Tile, int], object]]:
        """Return how many launches a graph has, and what launches a tile for the n-th time."""


class HeadStand(CudaStand[HeadTile]):
    """Two heads, so that no cache keeps one: twice the matrix plus 2 GB."""

    def __init__(self, vocab: int, hidden: int, weights: Weights = "int8") -> None:
        self.drawn = torch.Generator("cuda").manual_seed(1)
        if weights == "int8":
            self.weights = [self._drawn(-127, 128, (vocab, hidden), torch.int8) for _ in range(2)]
            self.scales = torch.rand(vocab, device="cuda", generator=self.drawn) * 1e-3
        else:
            packed = (vocab, hidden // 2)
            self.weights = [self._drawn(0, 256, packed, torch.uint8) for _ in range(2)]
            size = (hidden // INT4_GROUP, vocab)
            scales = torch.rand(size, device="cuda", generator=self.drawn) * 1e-2
            self.scales = scales.to(DTYPE)
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

        self.key: HeadKey = key_of(self.weights[0])

    def _is_exact(self, tile: HeadTile) -> bool:
        x, exact = self._question(tile.rows)
        first, second = (self._logits(tile, x, 0) for _ in range(2))
        error = (first.double() - exact).norm() / exact.norm()
        return bool(error < SUMMATION) and torch.equal(first, second)

    def _launches(self, size: int) -> tuple[int, Callable[[HeadTile, int], object]]:
        x, _ = self._question(size)
        return LAUNCHES, lambda tile, turn: self._logits(tile, x, turn % 2)

    def _question(self, rows: int) -> tuple[Tensor, Tensor]:
        """Activations of so many rows, and the FP64 logits of the first head."""
        if rows not in self._known:
            self._known.clear()  # one set of logits takes up to 0.25 GB
            weight = self.weights[0]
            size = (rows, shape_of(weight)[1])
            x = torch.randn(size, device="cuda", generator=self.drawn).to(DTYPE)
            parts = [x.double() @ self._values(chunk).T for chunk in row_chunks(weight)]
            self._known[rows] = x, torch.cat(parts, dim=1)
        return self._known[rows]

    def _drawn(self, low: int, high: int, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high, size, dtype=dtype, device="cuda", generator=self.drawn)

    def _values(self, chunk: slice) -> Tensor:
        rows = self.weights[0][chunk]
        if rows.dtype == torch.uint8:
            return unpack_head(rows, self.scales[:, chunk]).double()
        return rows.double() * self.scales[chunk].double()[:, None]

    def _logits(self, tile: HeadTile, x: Tensor, turn: int) -> Tensor:
        return head_with_tile(tile, x, (self.weights[turn], self.scales, None), LOGITS_DTYPE)


class AttentionStand(CudaStand[AttentionTile]):
    """Pages of several layers, twice what the L2 cache holds and two at least."""

    def __init__(self, attention: AttentionLayer, most_tokens: int) -> None:
        self.attention, self.most_tokens = attention, most_tokens
        self.device = torch.device("cuda", torch.cuda.current_device())
        checked = [self._question((most_tokens, *CHECKED_LENGTHS), page) for page in CHECKED_PAGES]
        self._known = [(it, proof.exact(attention, it, torch.float64)) for it in checked]
        self.key: AttentionKey = decode.key_of(attention, most_tokens, self.device)

    def _is_exact(self, tile: AttentionTile) -> bool:
        return all(self._gives(tile, question, exact) for question, exact in self._known)

    def _launches(self, size: int) -> tuple[int, Callable[[AttentionTile, int], object]]:
        drawn = self._question((DRAWN_TOKENS,), PAGE_TOKENS)
        table = torch.randperm(size // PAGE_TOKENS, dtype=torch.int32, device=self.device)
        lengths = torch.tensor([size], dtype=torch.int32, device=self.device)
        requests = replace(drawn.requests, lengths=lengths, table=table[None])
        layers = self._layers_of(size, drawn.pages.flatten(0, 1))
        out = torch.empty_like(drawn.query)

        def launch(tile: AttentionTile, turn: int) -> None:
            scratch = proof.scratch(self.attention, tile, drawn, 0.0)
            asked = Question(drawn.query, layers[turn], requests)
            proof.attend(self.attention, tile, asked, out, scratch)

        return len(layers), launch

    def _layers_of(self, context: int, slots: Tensor) -> list[Tensor]:
        """Pages of layers with so many tokens each, as many as L2 does not hold."""
        about = torch.cuda.get_device_properties(self.device)
        l2_bytes = getattr(about, "L2_cache_size", 0) or L2_BYTES
        count = max(2, -(-2 * l2_bytes // (context * slots[0].numel())))
        pool = slots.repeat(-(-count * context // DRAWN_TOKENS), 1, 1)[: count * context]
        return list(pool.unflatten(0, (count, context // PAGE_TOKENS, PAGE_TOKENS)).unbind(0))

    def _question(self, lengths: tuple[int, ...], page: int) -> Question:
        return proof.draw(self.attention, lengths, page, DTYPE, self.most_tokens, self.device)

    def _gives(self, tile: AttentionTile, question: Question, exact: Tensor) -> bool:
        """Whether the kernel gives this, twice the same. What it does not write is no number."""
        first, second = (torch.full_like(question.query, torch.nan) for _ in range(2))
        for out in (first, second):
            scratch = proof.scratch(self.attention, tile, question, torch.nan)
            proof.attend(self.attention, tile, question, out, scratch)
        error = (first.double() - exact).norm(dim=-1) / exact.norm(dim=-1)
        return bool((error < ROUNDING).all()) and torch.equal(first, second)


def _captured(
    launch: Callable[[Tile, int], object], tile: Tile, launches: int
) -> torch.cuda.CUDAGraph:
    launch(tile, 0)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(launches):
            launch(tile, turn)
    graph.replay()
    return graph


def _replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    time.sleep(PAUSE_S)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
