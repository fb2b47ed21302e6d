"""TurboQuant's decode kernel, its CUDA source, run on the CPU thread by thread.

Speed and what PTX does need a card; which bytes are read, which thread waits for which, and what
comes out are the same here.
"""

import importlib
from types import ModuleType

import torch
from cuda_on_cpu import decode_on_cpu
from sparkdeploy_vllm.turboquant.format import slot_format
from sparkdeploy_vllm.turboquant.reference import attend_slots
from vllm.utils.torch_utils import set_random_seed

CPU = torch.device("cpu")
ROUNDING = 2.0**-8
"""Relative error that BF16 may add to a row."""
SHAPES = (
    ("turboquant_4bit_nc", 256, 4, 2, 2, 16, (12, 1)),
    ("turboquant_4bit_nc", 256, 32, 2, 3, 16, (9, 0)),
    ("turboquant_k8v4", 128, 6, 2, 1, 16, (9, 0)),
    ("turboquant_k3v4_nc", 64, 6, 1, 4, 32, (12, 1)),
    ("turboquant_3bit_nc", 64, 8, 8, 1, 16, (9, 0)),
)
"""Format, head dimensions, query and KV heads, query tokens, tokens of a page, and the card."""


def _attention(module: ModuleType, cache_dtype: str, head_dim: int, heads: int, kv_heads: int):  # type: ignore[no-untyped-def] # noqa: ANN202
    slot = slot_format(cache_dtype, head_dim)
    return module.AttentionLayer(slot, heads, kv_heads, head_dim**-0.5)


def _fault(module: ModuleType, attention, tokens: int, page: int) -> str | None:  # type: ignore[no-untyped-def] # noqa: ANN001
    proof = importlib.import_module("sparkdeploy_vllm.turboquant.proof")
    tile = attention.shipped_tile(module._capability(0), tokens)
    fault: str | None = proof.first_fault(attention, tile, page, torch.bfloat16, tokens, CPU)
    return fault


def check_the_kernel_attends_in_every_format() -> None:
    for cache_dtype, head_dim, heads, kv_heads, tokens, page, card in SHAPES:
        with decode_on_cpu(4, card) as module:
            attention = _attention(module, cache_dtype, head_dim, heads, kv_heads)
            assert _fault(module, attention, tokens, page) is None, cache_dtype


def check_unlike_requests_in_one_launch_are_each_right() -> None:
    """Among them one without tokens, as a CUDA graph's padding is; its rows keep what they had."""
    set_random_seed(5)
    lengths, counts, page, most = (150, 0, 1, 40), (3, 1, 1, 2), 16, 3
    with decode_on_cpu(3) as module:
        proof = importlib.import_module("sparkdeploy_vllm.turboquant.proof")
        attention = _attention(module, "turboquant_4bit_nc", 64, 4, 2)
        pages, table = proof.draw_pages(attention, lengths, page, torch.Generator().manual_seed(2))
        query = torch.randn(sum(counts), 4, 64).bfloat16()
        starts = torch.tensor((0, *counts), dtype=torch.int32).cumsum(0).int()
        requests = module.Requests(torch.tensor(lengths).int(), starts, table, most)
        shapes = module.scratch_shapes(attention, sum(counts), 3)
        scratch = module.Scratch(*(torch.full(shape, torch.nan) for shape in shapes))
        tile = attention.shipped_tile((9, 0), most)
        found = [torch.full_like(query, 7) for _ in range(2)]
        for out in found:
            module.decode_attention(attention, query, pages, requests, out, scratch, tile)
        centroids = proof.centroids(attention, CPU)
    assert torch.equal(*found)
    for request, length in enumerate(lengths):
        rows = slice(int(starts[request]), int(starts[request + 1]))
        if not length:
            assert (found[0][rows] == 7).all()
            continue
        slots = pages[table[request].long()].flatten(0, 1)[:length]
        asked = query[rows].double()
        exact = attend_slots(asked, slots, attention.slot, centroids, attention.scale)
        error = (found[0][rows] - exact).norm(dim=-1) / exact.norm(dim=-1)
        assert (error < ROUNDING).all(), (request, error)


def check_a_kernel_that_waits_for_too_little_or_too_much_is_found() -> None:
    calls = {"barrier_wait(": "", "barrier_arrive(": "threads wait for ever", "team_barrier(": ""}
    for call, words in calls.items():

        def without(source: str, call: str = call) -> str:
            return source.replace(call, "(void)(")

        with decode_on_cpu(1, change=without) as module:
            # Of a head with 128 dimensions two warps are a team.
            attention = _attention(module, "turboquant_4bit_nc", 128, 2, 1)
            fault = _fault(module, attention, 1, 128)
        assert words in str(fault), (call, fault)
        assert fault is not None, call
