"""TurboQuant pages made up at random, and exact attention over them, for the GPU scripts beside."""

# mypy: disable-error-code="import-not-found"

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

PLUGIN = Path(__file__).resolve().parents[3] / "sparkdeploy" / "vllm_plugin"
sys.path.insert(0, str(PLUGIN))
from sparkdeploy_vllm.kernels import cuda_timing  # noqa: E402
from sparkdeploy_vllm.kernels.turboquant_decode import (  # noqa: E402
    AttentionLayer,
    Requests,
    Scratch,
    decode_attention,
    scratch_of,
)
from sparkdeploy_vllm.turboquant_format import SlotFormat, slot_format  # noqa: E402
from sparkdeploy_vllm.turboquant_maths import pack_slots  # noqa: E402

__all__ = ["AttentionLayer", "Requests", "cuda_timing", "decode_attention", "pack_slots"]
"""Handed on, since the path to the plugin is set here."""
FORMATS = ("4bit_nc", "k8v4", "k3v4_nc", "3bit_nc")
PAGE = 64
VLLM_CENTROIDS = {
    3: (0.24498359, 0.7556455, 1.34318001, 2.15034954),
    4: (
        0.12842766, 0.38813779, 0.65687992, 0.94244824, 1.25625757, 1.61788176, 2.06844712,
        2.73092222,
    ),
}  # fmt: skip
"""Of N(0, 1), the positive ones: vLLM stops its Lloyd-Max solver after 200 rounds."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's attention looks like on one GPU."""

    name: str
    query_heads: int
    kv_heads: int
    head_dim: int


BIG = Shape("122B", 32, 2, 256)
SMALL = Shape("35B", 16, 2, 256)


def attention_of(shape: Shape, name: str) -> AttentionLayer:
    slot = slot_format(f"turboquant_{name}", shape.head_dim)
    return AttentionLayer(slot, shape.query_heads, shape.kv_heads, shape.head_dim**-0.5)


def centroids(bits: int, head_dim: int) -> torch.Tensor:
    """Those of N(0, 1 / head_dim) as vLLM's solver leaves them, FP32 [2^bits], ascending."""
    positive = torch.tensor(VLLM_CENTROIDS[bits], dtype=torch.float64) * head_dim**-0.5
    return torch.cat([-positive.flip(0), positive]).float()


def random_pages(
    attention: AttentionLayer, blocks: int, generator: torch.Generator, page: int = PAGE
) -> torch.Tensor:
    """uint8 [blocks, page, KV heads, slot bytes]: codes of any kind, scalars of a usual size."""
    slot = attention.slot
    size = (blocks, page, attention.kv_heads, slot.slot_bytes)
    pages = torch.randint(0, 256, size, dtype=torch.uint8, device="cuda", generator=generator)
    if not slot.has_rotated_keys:
        keys = torch.randn((*size[:3], slot.head_dim), device="cuda", generator=generator)
        pages[..., : slot.head_dim] = keys.to(torch.float8_e4m3fn).view(torch.uint8)
    else:
        _put(pages, slot.norm_offset, (8.0, 24.0), generator)
    _put(pages, slot.scale_offset, (0.05, 0.4), generator)
    _put(pages, slot.scale_offset + 2, (-3.0, -0.5), generator)
    return pages


def _put(
    pages: torch.Tensor, offset: int, bounds: tuple[float, float], generator: torch.Generator
) -> None:
    low, high = bounds
    drawn = torch.rand(pages.shape[:3], device="cuda", generator=generator)
    scalars = (low + (high - low) * drawn).half()
    pages[..., offset : offset + 2] = scalars.unsqueeze(-1).view(torch.uint8)


def codes(packed: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """The first `count` codes of uint8 [..., bytes], lowest bits first: int64 [..., count]."""
    at = torch.arange(count, device=packed.device) * bits
    padded = torch.nn.functional.pad(packed, (0, 1)).long()
    both = padded[..., at // 8] | (padded[..., at // 8 + 1] << 8)
    return (both >> (at % 8)) & (2**bits - 1)


def _scalar(slots: torch.Tensor, offset: int) -> torch.Tensor:
    return slots[..., offset : offset + 2].contiguous().view(torch.float16).double()


def unpacked(slot: SlotFormat, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """FP64 keys (rotated where the format rotates) and values [..., head_dim] of slots."""
    dim = slot.head_dim
    if slot.has_rotated_keys:
        table = centroids(slot.key_bits, dim).to(slots.device).double()
        direction = table[codes(slots[..., : slot.key_code_bytes], slot.key_bits, dim)]
        unit = direction / direction.norm(dim=-1, keepdim=True)
        keys = unit * _scalar(slots, slot.norm_offset)
    else:
        keys = slots[..., :dim].contiguous().view(torch.float8_e4m3fn).double()
    packed = slots[..., slot.value_offset : slot.scale_offset]
    values = codes(packed, slot.value_bits, dim).double()
    zero = _scalar(slots, slot.scale_offset + 2)
    return keys, values * _scalar(slots, slot.scale_offset) + zero


def hadamard(dim: int) -> torch.Tensor:
    """FP64 [dim, dim], orthonormal."""
    matrix = torch.ones((1, 1), dtype=torch.float64)
    while matrix.shape[0] < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix.cuda() / math.sqrt(dim)


def exact_attention(
    attention: AttentionLayer, query: torch.Tensor, pages: torch.Tensor, requests: Requests
) -> torch.Tensor:
    """FP64 [T, H, D] of `query` [T, H, D]; rows of no request are zero."""
    out = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    page = pages.shape[1]
    for number, length in enumerate(requests.lengths.tolist()):
        first, last = requests.starts[number : number + 2].tolist()
        if last <= first or length <= 0:
            continue
        blocks = requests.table[number, : -(-length // page)].long()
        for head in range(attention.kv_heads):
            slots = pages[blocks, :, head].flatten(0, 1)[:length]
            keys, values = unpacked(attention.slot, slots)
            heads = slice(head * attention.group, (head + 1) * attention.group)
            asked = query[first:last, heads].double()
            if attention.slot.has_rotated_keys:
                asked = asked @ hadamard(attention.slot.head_dim)
            for token in range(last - first):
                seen = length - (last - first - 1 - token)
                score = asked[token] @ keys[:seen].T * attention.scale
                out[first + token, heads] = torch.softmax(score, -1) @ values[:seen]
    return out


def requests_of(
    lengths: list[int], tokens: list[int], blocks: int, page: int = PAGE, most_tokens: int = 0
) -> Requests:
    """Requests whose pages are dealt from `blocks` in a mixed order."""
    width = max(1, -(-max(lengths) // page))
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(7))
    table = torch.zeros((len(lengths), width), dtype=torch.int32)
    taken = 0
    for number, length in enumerate(lengths):
        count = -(-length // page)
        table[number, :count] = order[taken : taken + count].int()
        taken += count
    starts = torch.tensor([0, *tokens]).cumsum(0).int()
    return Requests(
        torch.tensor(lengths, dtype=torch.int32, device="cuda"),
        starts.cuda(),
        table.cuda(),
        most_tokens or max(tokens),
    )


def new_scratch(attention: AttentionLayer, query: torch.Tensor, requests: Requests) -> Scratch:
    """Scratch memory that holds NaN, so that what is read without being written shows."""

    def allocate(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
        return [torch.full(shape, float("nan"), device="cuda") for shape in shapes]

    return scratch_of(attention, query, requests, allocate)


def vllm_kernel(
    attention: AttentionLayer,
) -> Callable[[torch.Tensor, torch.Tensor, Requests], torch.Tensor] | None:
    """vLLM's own decode kernel for one query token a request; None without vLLM."""
    try:
        from vllm.v1.attention.ops.triton_turboquant_decode import (
            triton_turboquant_decode_attention as decode,
        )
    except ImportError:
        return None
    slot = attention.slot
    rotation = hadamard(slot.head_dim).float()
    bits = slot.key_bits if slot.has_rotated_keys else slot.value_bits
    table = centroids(bits, slot.head_dim).cuda()

    def attend(query: torch.Tensor, pages: torch.Tensor, requests: Requests) -> torch.Tensor:
        result: torch.Tensor = decode(
            query, pages, requests.table, requests.lengths, rotation, table, attention.scale,
            mse_bits=slot.key_bits if slot.has_rotated_keys else 0,
            key_packed_size=slot.value_offset, value_quant_bits=slot.value_bits,
            key_fp8=not slot.has_rotated_keys, norm_correction=slot.has_rotated_keys, PiT=rotation,
        )  # fmt: skip
        return result

    return attend
