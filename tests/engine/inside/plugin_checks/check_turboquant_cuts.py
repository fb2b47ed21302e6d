"""The cuts of TurboQuant's decode kernel that do not ship, run on the CPU thread by thread.

Blocks that wait for each other are put aside until the others have come; warps, copies and blocks
go on in a random order, and what comes out must not depend on it.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace

import torch
from cuda_on_cpu import decode_on_cpu
from sparkdeploy_vllm.kernels.turboquant_tiles import AttentionTile
from sparkdeploy_vllm.turboquant_format import slot_format
from sparkdeploy_vllm.turboquant_maths import attend_slots

CPU = torch.device("cpu")
ROUNDING = 2.0**-8
"""Relative error that BF16 may add to a row."""
UNTOUCHED = 7
LENGTHS, COUNTS, PAGE = (150, 0, 1, 1100), (3, 1, 1, 2), 16
"""Of requests in one launch: one has no tokens, as a CUDA graph's padding; one goes round the ring
several times."""
SPLITS = 2
TWO_LAUNCHES = AttentionTile(16, 4, 2)
SHARED = AttentionTile(16, 8, 4, teams=2, sharing=2, launches=1)
CUTS = (
    ("turboquant_4bit_nc", 64, 4, 2, AttentionTile(16, 4, 4, teams=2)),
    ("turboquant_4bit_nc", 128, 4, 2, SHARED),
    ("turboquant_k3v4_nc", 128, 4, 1, replace(SHARED, teams=4, stages=8)),
    ("turboquant_3bit_nc", 128, 40, 2, replace(SHARED, stages=2)),
    ("turboquant_k8v4", 256, 4, 2, replace(SHARED, launches=2)),
    ("turboquant_4bit_nc", 256, 4, 2, replace(SHARED, tokens=32)),
)
"""Format, head dimensions, query and KV heads, and the cut."""


def _attend(
    cache_dtype: str,
    head_dim: int,
    heads: int,
    kv_heads: int,
    tile: AttentionTile,
    *,
    repeats: int = 2,
    change: Callable[[str], str] = lambda source: source,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What `repeats` launches leave, and exact attention; both are 7 where a request is empty."""
    drawn = torch.Generator().manual_seed(2)
    with decode_on_cpu(64, change=change) as module:
        module._arrivals.cache_clear()
        proof = importlib.import_module("sparkdeploy_vllm.kernels.turboquant_proof")
        slot = slot_format(cache_dtype, head_dim)
        attention = module.AttentionLayer(slot, heads, kv_heads, head_dim**-0.5)
        pages, table = proof._pages(attention, LENGTHS, PAGE, drawn)
        query = torch.randn(sum(COUNTS), heads, head_dim, generator=drawn).bfloat16()
        starts = torch.tensor((0, *COUNTS), dtype=torch.int32).cumsum(0).int()
        requests = module.Requests(torch.tensor(LENGTHS).int(), starts, table, max(COUNTS))
        shapes = module.scratch_shapes(attention, sum(COUNTS), SPLITS)
        found = [torch.full_like(query, UNTOUCHED) for _ in range(repeats)]
        for out in found:
            scratch = module.Scratch(*(torch.full(shape, torch.nan) for shape in shapes))
            module.decode_attention(attention, query, pages, requests, out, scratch, tile)
        assert not module._arrivals(CPU, 64).any(), "the next launch would count on from here"
        centroids = proof._centroids(attention, CPU)
    exact = torch.full(query.shape, float(UNTOUCHED), dtype=torch.float64)
    for request, length in enumerate(LENGTHS):
        if length:
            rows = slice(int(starts[request]), int(starts[request + 1]))
            slots = pages[table[request].long()].flatten(0, 1)[:length]
            exact[rows] = attend_slots(
                query[rows].double(), slots, slot, centroids, attention.scale
            )
    return found, exact


def _is_right(found: torch.Tensor, exact: torch.Tensor) -> bool:
    error = (found - exact).norm(dim=-1) / exact.norm(dim=-1)
    return bool((error < ROUNDING).all())


def check_every_cut_attends_to_requests_that_are_unlike() -> None:
    for cut in CUTS:
        found, exact = _attend(*cut)
        assert _is_right(found[0], exact), cut
        assert torch.equal(*found), cut


def check_one_launch_gives_the_same_whoever_comes_last() -> None:
    """What the blocks leave is that of two launches; joining adds it up by parts, in order."""
    layer = ("turboquant_4bit_nc", 64, 4, 2)
    one, exact = _attend(*layer, replace(TWO_LAUNCHES, launches=1), repeats=20)
    assert all(torch.equal(out, one[0]) for out in one)
    (two,), _ = _attend(*layer, TWO_LAUNCHES, repeats=1)
    assert _is_right(one[0], exact)
    assert (one[0] - two).norm() <= two.norm() * ROUNDING


def check_a_cut_that_waits_for_too_little_is_found() -> None:
    for call in ("wait_for_blocks(arrivals", "meet_partner(warp / 2"):

        def without(source: str, call: str = call) -> str:
            assert call in source
            return source.replace(call, f"(void)({call.partition('(')[2]}")

        found, exact = _attend("turboquant_4bit_nc", 128, 4, 2, SHARED, repeats=6, change=without)
        assert not all(_is_right(out, exact) for out in found), call
