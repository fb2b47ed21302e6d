"""Routing in one launch alone: right for one to eight rows, and how long it takes.

`PYTHONPATH=PLUGIN[:SITE] python3 routing.py [--check]`: experts, weights and blocks beside plain
torch (and rows of NaN, as padding may hold), then microseconds of 48 layers in a CUDA graph beside
vLLM's own operators. One JSON line a size; on a CPU with TRITON_INTERPRET=1 and `--check`.
"""

import json
import sys
from collections.abc import Callable

import torch
from sparkdeploy_vllm.weights.conversion import MOST_ROWS
from sparkdeploy_vllm.weights.routing_kernel import route
from timing import graph_us
from torch import Tensor

SIZES = ((256, 8, True), (512, 10, True), (128, 8, False), (60, 4, True), (8, 2, False))
"""Experts, how many a row takes, and whether weights are divided by their sum."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYERS = 48


def plain(logits: Tensor, top: int, *, renormalize: bool) -> tuple[Tensor, Tensor]:
    shares = logits.float().softmax(1)
    ids = torch.sort(shares, dim=1, descending=True, stable=True).indices[:, :top]
    weights = shares.gather(1, ids)
    return weights / weights.sum(1, keepdim=True) if renormalize else weights, ids.int()


def blocks_of(ids: Tensor) -> list[tuple[int, list[int]]]:
    """Return each expert in use with its pairs, filled up with the number of all pairs."""
    pairs: dict[int, list[int]] = {}
    for number, expert in enumerate(ids.flatten().tolist()):
        pairs.setdefault(expert, []).append(number)
    return [(it, found + [ids.numel()] * (8 - len(found))) for it, found in sorted(pairs.items())]


def is_right(logits: Tensor, top: int, *, renormalize: bool) -> bool:
    weights, ids, blocks = route(logits, top, renormalize=renormalize)
    used = int(blocks.padded)
    sorted_ids = blocks.sorted_ids[:used].view(-1, 8).tolist()
    found = list(zip(blocks.expert_ids[: used // 8].tolist(), sorted_ids, strict=True))
    if found != blocks_of(ids):
        return False
    if not logits.isfinite().all():
        return all(len(set(row)) == top and 0 <= min(row) <= max(row) < logits.shape[1]
                   for row in ids.tolist())  # fmt: skip
    wanted, wanted_ids = plain(logits, top, renormalize=renormalize)
    return torch.equal(ids, wanted_ids) and torch.allclose(weights, wanted, rtol=1e-5, atol=0)


def check(experts: int, top: int, *, renormalize: bool) -> bool:
    good = True
    for rows in range(1, MOST_ROWS + 1):
        for dtype in (torch.float32, torch.bfloat16):
            drawn = torch.randn((rows, experts), device=DEVICE).to(dtype)
            odd = drawn.clone()
            odd[-1] = float("nan")
            odd[0, : experts // 2] = float("-inf")
            same = torch.zeros_like(drawn)
            good = good and all(is_right(it, top, renormalize=renormalize)
                                for it in (drawn, odd, same))  # fmt: skip
    return good


def step_us(one: Callable[[], object]) -> float:
    return graph_us(lambda: [one() for _ in range(LAYERS)])


def both_us(experts: int, top: int, rows: int) -> dict[str, float]:
    from vllm.model_executor.layers.fused_moe.moe_align_block_size import moe_align_block_size
    from vllm.model_executor.layers.fused_moe.router.fused_topk_router import fused_topk

    logits = torch.randn((rows, experts), device=DEVICE).bfloat16()

    def theirs() -> None:
        _, ids, _ = fused_topk(logits, logits, top, True)
        moe_align_block_size(ids, 8, experts, None, ignore_invalid_experts=True)

    ours = step_us(lambda: route(logits, top, renormalize=True))
    return {"ours_us": round(ours, 1), "vllm_us": round(step_us(theirs), 1)}


def main() -> int:
    good = True
    for experts, top, renormalize in SIZES:
        found: dict[str, object] = {"experts": experts, "top": top}
        found["is_right"] = check(experts, top, renormalize=renormalize)
        good = good and found["is_right"] is True
        if "--check" not in sys.argv and experts >= 256:
            for rows in (1, 3, 8):
                found[f"{rows}_rows"] = both_us(experts, top, rows)
        print(json.dumps(found), flush=True)
    return 0 if good else 1


raise SystemExit(main())
