"""Decode attention over vLLM's TurboQuant pages on a GPU: which layers it takes, what it launches.

The kernels are CUDA C++ (decode.cu); the same in Triton reached a third of the memory's
speed (docs/figures/turboquant-decode-h100.md).
"""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache

import torch
from torch import Tensor

from sparkdeploy_vllm.turboquant.format import SlotFormat
from sparkdeploy_vllm.turboquant.launch import ATTEND, JOIN, LaunchShape, Sizes, compiler, launch
from sparkdeploy_vllm.turboquant.tiles import (
    SHIPPED,
    AttentionKey,
    AttentionTile,
    kernel_fingerprint,
    shared_bytes,
    shipped_tile,
)

INTEGER, WIDE, POINTER, REAL = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p, ctypes.c_float
HEAD_DIMS = (64, 128, 256)
KV_HEADS = (1, 2, 4, 8)
PAGE_SIZES = (16, 32, 64, 128)
QUERY_DTYPES = (torch.bfloat16, torch.float16)
MOST_QUERY_TOKENS = 8
MOST_SPLITS = 256
ALIGNMENT = 16
"""Bytes; of what the bulk copy engine reads."""
LOG2_E = 1.4426950408889634
JOIN_THREADS = 512
JOINED_DIMENSIONS = 64
CENTROIDS = {
    3: (0x30F1, 0x379F, 0x3AC6, 0x3D6C),
    4: (0x2B20, 0x3162, 0x348E, 0x3689, 0x385B, 0x399C, 0x3B2C, 0x3CBC),
}
"""The positive centroids of N(0, 1) by vLLM's Lloyd-Max solver, as FP16 bits, ascending; the others
mirror them. All are times 0.63033915 (3 bits) or 0.43339555 (4 bits): with these factors FP16 is
within 2.5e-5 and 7.4e-5 of every one, and since a key is made a unit vector again, they cancel."""


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """A layer's attention: its slots, its heads on this rank, the factor of its scores."""

    slot: SlotFormat
    query_heads: int
    kv_heads: int
    scale: float

    @property
    def group(self) -> int:
        return self.query_heads // self.kv_heads

    def rows(self, most_tokens: int) -> int:
        return most_tokens * self.group

    def shipped_tile(self, capability: tuple[int, int], most_tokens: int) -> AttentionTile | None:
        return shipped_tile(capability[0], self.slot, self.kv_heads, self.rows(most_tokens))


@dataclass(frozen=True, slots=True)
class Requests:
    """What a batch asks: `lengths` int32 [R], tokens of each request up to its last query;
    `starts` int32 [R + 1], where its queries begin; `table` int32 [R, pages], its pages;
    `most_tokens`, as many query tokens as a request may have.
    """

    lengths: Tensor
    starts: Tensor
    table: Tensor
    most_tokens: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """What blocks leave for the second launch, for T query tokens of H heads and S splits:
    `parts` FP32 [T, H, S, D] and `sums` FP32 [T, H, S].
    """

    parts: Tensor
    sums: Tensor

    @property
    def splits(self) -> int:
        return self.sums.shape[2]


def unfit(attention: AttentionLayer, capability: tuple[int, int], most_tokens: int) -> str | None:
    """Why the kernel cannot serve such a layer on such a card; None where it can."""
    if capability[0] not in SHIPPED:
        return f"a card of compute capability {capability[0]}.{capability[1]} has no bulk copies"
    if attention.slot.head_dim not in HEAD_DIMS:
        return f"heads have {attention.slot.head_dim} dimensions"
    if attention.kv_heads not in KV_HEADS or attention.query_heads % attention.kv_heads:
        return f"a rank has {attention.query_heads} query and {attention.kv_heads} KV heads"
    if most_tokens > MOST_QUERY_TOKENS:
        return f"{most_tokens} tokens are verified at once, more than {MOST_QUERY_TOKENS}"
    if attention.shipped_tile(capability, most_tokens) is None:
        return "its queries leave too little shared memory for the pages"
    return None


def takes(attention: AttentionLayer, query: Tensor, pages: Tensor) -> bool:
    slot_bytes = attention.slot.slot_bytes
    return (
        query.is_cuda
        and query.dtype in QUERY_DTYPES
        and query.stride(2) == 1
        and pages.shape[1] in PAGE_SIZES
        and pages.stride()[1:] == (attention.kv_heads * slot_bytes, slot_bytes, 1)
        and pages.stride(0) % ALIGNMENT == 0
        and pages.data_ptr() % ALIGNMENT == 0
    )


def decode_attention(  # noqa: PLR0913, PLR0917 - the tensors of one call
    attention: AttentionLayer,
    query: Tensor,
    pages: Tensor,
    requests: Requests,
    out: Tensor,
    scratch: Scratch,
    tile: AttentionTile,
) -> Tensor:
    """Attend from `query` [T, H, D] to `pages` uint8 [blocks, tokens, KV heads, slot bytes].

    Query token t of n sees all tokens of its request but the last n - 1 - t. Writes `out`, like
    `query`, and returns it; rows of tokens that no request has keep what they had. Nothing waits
    for the card, and every grid depends on shapes alone: safe in a CUDA graph, whose `requests` may
    change between replays. A row's result depends on the splits, not on the other rows.
    """
    sizes = _sizes(attention, tile, requests.most_tokens, pages.shape[1], query.dtype)
    _attend(attention, query, pages, requests, scratch, tile, sizes)
    _join(attention, requests, out, scratch, sizes)
    return out


def key_of(attention: AttentionLayer, most_tokens: int, device: torch.device) -> AttentionKey:
    return AttentionKey(
        card=torch.cuda.get_device_name(device),
        capability=torch.cuda.get_device_capability(device),
        **asdict(attention.slot),
        kv_heads=attention.kv_heads,
        group=attention.group,
        most_tokens=most_tokens,
        kernel=kernel_fingerprint(),
        nvrtc=compiler(),
    )


def blocks_of(attention: AttentionLayer, tile: AttentionTile, most_tokens: int) -> int:
    """Blocks that the same tokens of a request have: rows and heads of their own."""
    return -(-attention.rows(most_tokens) // tile.rows) * (attention.kv_heads // tile.heads)


def splits_of(requests: int, blocks_of_a_request: int, multiprocessors: int) -> int:
    """Parts a context is cut into, so that every multiprocessor has a block, and never more."""
    blocks = max(1, requests * blocks_of_a_request)
    return max(1, min(MOST_SPLITS, multiprocessors // blocks))


def scratch_shapes(
    attention: AttentionLayer, tokens: int, splits: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = (tokens, attention.query_heads, splits)
    return (*shape, attention.slot.head_dim), shape


def scratch_of(
    attention: AttentionLayer,
    tile: AttentionTile,
    query: Tensor,
    requests: Requests,
    allocate: Callable[..., Iterable[Tensor]],
) -> Scratch:
    """Scratch memory for one call; `allocate` gives FP32 tensors of the shapes that it gets."""
    count = requests.lengths.shape[0]
    processors = multiprocessors(query.device.index)
    splits = splits_of(count, blocks_of(attention, tile, requests.most_tokens), processors)
    return Scratch(*allocate(*scratch_shapes(attention, query.shape[0], splits)))


@cache
def multiprocessors(device_index: int) -> int:
    return torch.cuda.get_device_properties(device_index).multi_processor_count


@cache
def _capability(device_index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device_index)


def _architecture(device_index: int) -> str:
    return "sm_{}{}".format(*_capability(device_index))


@cache
def _sizes(
    attention: AttentionLayer, tile: AttentionTile, most_tokens: int, page: int, dtype: torch.dtype
) -> Sizes:
    rows = tile.rows_for(attention.rows(most_tokens))
    layer = {"kv_heads": attention.kv_heads, "group": attention.group, "page": page}
    asked = {"most_tokens": most_tokens, "query_bf16": int(dtype == torch.bfloat16)}
    cut = {**asdict(replace(tile, rows=rows)), "most_splits": MOST_SPLITS}
    return tuple((asdict(attention.slot) | layer | asked | cut).items())


@cache
def centroid_bytes(key_bits: int) -> tuple[int, ...]:
    """What byte permutations look up, as four 32-bit numbers.

    They are the high bytes of entries 0 to 3 and 4 to 7, then their low bytes. An entry is a code
    of 3 bits, or the magnitude of one of 4.
    """
    if key_bits not in CENTROIDS:
        return (0,) * 4
    entries = CENTROIDS[key_bits]
    if len(entries) == 4:
        entries = (*(bits | 0x8000 for bits in reversed(entries)), *entries)
    return tuple(
        int.from_bytes(bytes(bits >> shift & 0xFF for bits in entries[first : first + 4]), "little")
        for shift in (8, 0)
        for first in (0, 4)
    )


def _attend(  # noqa: PLR0913, PLR0917
    attention: AttentionLayer, query: Tensor, pages: Tensor, requests: Requests, scratch: Scratch,
    tile: AttentionTile, sizes: Sizes,
) -> None:  # fmt: skip
    rows = attention.rows(requests.most_tokens)
    blocks = blocks_of(attention, tile, requests.most_tokens)
    how = LaunchShape(
        grid=(requests.lengths.shape[0], blocks, scratch.splits),
        threads=32 * tile.warps,
        shared_bytes=shared_bytes(tile, attention.slot, attention.kv_heads, rows),
        stream=torch.cuda.current_stream(query.device).cuda_stream,
    )
    arguments = [
        (query.data_ptr(), POINTER), (query.stride(0), WIDE), (query.stride(1), WIDE),
        (pages.data_ptr(), POINTER), (pages.stride(0), WIDE),
        (requests.table.data_ptr(), POINTER), (requests.table.stride(0), WIDE),
        (requests.lengths.data_ptr(), POINTER), (requests.starts.data_ptr(), POINTER),
        (scratch.parts.data_ptr(), POINTER), (scratch.sums.data_ptr(), POINTER),
        (attention.scale * LOG2_E, REAL),
        *((word, ctypes.c_uint) for word in centroid_bytes(attention.slot.key_bits)),
    ]  # fmt: skip
    launch(sizes, _architecture(query.device.index), ATTEND, how, arguments)


def _join(
    attention: AttentionLayer, requests: Requests, out: Tensor, scratch: Scratch, sizes: Sizes
) -> None:
    rows, parts = requests.most_tokens * attention.query_heads, attention.slot.head_dim
    how = LaunchShape(
        grid=(requests.lengths.shape[0], rows, parts // JOINED_DIMENSIONS),
        threads=JOIN_THREADS,
        shared_bytes=0,
        stream=torch.cuda.current_stream(out.device).cuda_stream,
        is_early=True,
    )
    arguments = [
        (scratch.parts.data_ptr(), POINTER), (scratch.sums.data_ptr(), POINTER),
        (requests.lengths.data_ptr(), POINTER), (requests.starts.data_ptr(), POINTER),
        (out.data_ptr(), POINTER), (out.stride(0), WIDE), (out.stride(1), WIDE),
        (scratch.splits, INTEGER),
    ]  # fmt: skip
    launch(sizes, _architecture(out.device.index), JOIN, how, arguments)
