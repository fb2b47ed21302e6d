"""Runs tiles of an INT8 or INT4 head on a CUDA card: are they right, and how long do they take?"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparkdeploy_vllm.int4_head import unpack_head
from sparkdeploy_vllm.kernels.cuda_timing import captured, median_ms, shared_bytes_limit
from sparkdeploy_vllm.kernels.head import LOGITS_DTYPE, head_with_tile, key_of, shape_of
from sparkdeploy_vllm.kernels.head_configs import HeadTile, Weights, shipped_for
from sparkdeploy_vllm.kernels.head_tiles_file import HeadKey
from sparkdeploy_vllm.kernels.tile_tuning import Card
from sparkdeploy_vllm.maths import row_chunks
from sparkdeploy_vllm.treatment import INT4_GROUP

SUMMATION = 1e-5
"""Relative error that the order and width of FP32 sums on tensor cores may add."""
LAUNCHES = 8


class CudaStand:
    """A `Stand` with two heads, so that no cache keeps one: twice the matrix plus 2 GB."""

    def __init__(
        self,
        vocab: int,
        hidden: int,
        weights: Weights = "int8",
        *,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.drawn = torch.Generator("cuda").manual_seed(1)
        self.dtype = dtype
        if weights == "int8":
            self.weights = [self._drawn(-127, 128, (vocab, hidden), torch.int8) for _ in range(2)]
            self.scales = torch.rand(vocab, device="cuda", generator=self.drawn) * 1e-3
        else:
            self.weights = [
                self._drawn(0, 256, (vocab, hidden // 2), torch.uint8) for _ in range(2)
            ]
            size = (hidden // INT4_GROUP, vocab)
            scales = torch.rand(size, device="cuda", generator=self.drawn) * 1e-2
            self.scales = scales.to(dtype)
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def key(self) -> HeadKey:
        return key_of(self.weights[0])

    @property
    def card(self) -> Card[HeadTile]:
        capability = self.key.capability
        limit = shared_bytes_limit(self.weights[0].device)
        return Card(capability, limit, shipped_for(capability, self.key.weights).tiles)

    def is_right(self, tile: HeadTile) -> bool:
        x, exact = self._question(tile.rows)
        try:
            first, second = (self._logits(tile, x, 0) for _ in range(2))
            error = (first.double() - exact).norm() / exact.norm()
            return bool(error < SUMMATION) and torch.equal(first, second)
        except Exception:  # noqa: BLE001 - a compiler has many ways to refuse a tile
            return False

    def times_ms(self, tiles: Sequence[HeadTile], rows: int, rounds: int) -> list[float]:
        x, _ = self._question(rows)
        graphs = [self._captured(tile, x) for tile in tiles]
        return [ms / LAUNCHES for ms in median_ms(graphs, rounds)]

    def _question(self, rows: int) -> tuple[Tensor, Tensor]:
        """Activations of so many rows, and the FP64 logits of the first head."""
        if rows not in self._known:
            self._known.clear()  # one set of logits takes up to 0.25 GB
            weight = self.weights[0]
            size = (rows, shape_of(weight)[1])
            x = torch.randn(size, device="cuda", generator=self.drawn).to(self.dtype)
            parts = [x.double() @ self._values(chunk).T for chunk in row_chunks(weight)]
            self._known[rows] = x, torch.cat(parts, dim=1)
        return self._known[rows]

    def _drawn(self, low: int, high: int, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
        return torch.randint(low, high, size, dtype=dtype, device="cuda", generator=self.drawn)

    def _values(self, chunk: slice) -> Tensor:
        """FP64 rows of the first head."""
        rows = self.weights[0][chunk]
        if rows.dtype == torch.uint8:
            return unpack_head(rows, self.scales[:, chunk]).double()
        return rows.double() * self.scales[chunk].double()[:, None]

    def _logits(self, tile: HeadTile, x: Tensor, turn: int) -> Tensor:
        return head_with_tile(tile, x, (self.weights[turn], self.scales, None), LOGITS_DTYPE)

    def _captured(self, tile: HeadTile, x: Tensor) -> torch.cuda.CUDAGraph:
        return captured(lambda turn: self._logits(tile, x, turn % 2), LAUNCHES)
