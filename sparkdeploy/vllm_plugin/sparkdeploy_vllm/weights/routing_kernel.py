"""Routing in one launch for up to eight rows: experts chosen, weighed and sorted into blocks.

What vLLM does in four launches: the softmax with its largest entries, and three that sort rows by
their experts for Marlin's kernels, which take them in blocks of eight.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparkdeploy_vllm.weights.conversion import MARLIN_ROWS


class Blocks(NamedTuple):
    """vLLM's answer of `moe_align_block_size`, in its order."""

    sorted_ids: Tensor
    """int32: of each block, eight numbers of (row, choice) pairs; as many as there are pairs where
    a block has no more."""
    expert_ids: Tensor
    """int32 [blocks]: whose block it is, ascending."""
    padded: Tensor
    """int32 [1]: entries of `sorted_ids` in use."""


def route(logits: Tensor, top: int, *, renormalize: bool) -> tuple[Tensor, Tensor, Blocks]:
    """Return FP32 weights [M, top], int32 experts [M, top], and the blocks, for logits [M, E].

    A row's experts are its `top` largest logits, the lower number first among equals, and their
    weights are the softmax over all, which `renormalize` divides by the sum of those chosen.
    """
    rows, experts = logits.shape
    weights = torch.empty((rows, top), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, top), dtype=torch.int32, device=logits.device)
    most = rows * top
    blocks = Blocks(*(ids.new_empty(count) for count in (most * MARLIN_ROWS, most, 1)))
    sizes = {"EXPERTS": experts, "COLUMNS": triton.next_power_of_2(experts)}
    sizes |= {"TOP": top, "CHOICES": triton.next_power_of_2(top), "RENORMALIZE": renormalize}
    _route[(1,)](logits, weights, ids, *blocks, rows, **sizes, num_warps=8)
    return weights, ids, blocks


@triton.jit(do_not_specialize=["rows"])
def _route(  # noqa: ANN202, PLR0913, PLR0917
    logits, weights, ids, sorted_ids, expert_ids, padded, rows,  # noqa: ANN001
    EXPERTS: tl.constexpr, COLUMNS: tl.constexpr, TOP: tl.constexpr,  # noqa: N803
    CHOICES: tl.constexpr, RENORMALIZE: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, expert, choice = tl.arange(0, 8), tl.arange(0, COLUMNS), tl.arange(0, CHOICES)
    is_logit = (row < rows)[:, None] & (expert < EXPERTS)[None, :]
    at = logits + row[:, None] * EXPERTS + expert[None, :]
    seen = tl.load(at, mask=is_logit, other=-float("inf")).to(tl.float32)
    # Rows that pad a CUDA graph may hold anything; their experts must exist and differ. Behind the
    # exponential a compiler takes NaN for impossible.
    seen = tl.where(seen > -3e38, tl.where(seen < 3e38, seen, 3e38), -3e38)
    shares = tl.exp(seen - tl.max(seen, 1)[:, None])
    total = tl.sum(shares, 1)
    left = tl.where((expert < EXPERTS)[None, :], shares, -2.0)
    chosen = tl.full((8, CHOICES), COLUMNS, tl.int32)
    taken = tl.zeros((8, CHOICES), tl.float32)
    for nth in tl.static_range(TOP):
        value, best = tl.max(left, 1, return_indices=True)
        left = tl.where(expert[None, :] == best[:, None], -1.0, left)
        is_nth = (choice == nth)[None, :]
        chosen = tl.where(is_nth, best[:, None], chosen)
        taken = tl.where(is_nth, value[:, None], taken)
    taken = taken / total[:, None]
    if RENORMALIZE:
        taken = taken / tl.sum(taken, 1)[:, None]
    is_pair = (row < rows)[:, None] & (choice < TOP)[None, :]
    place = row[:, None] * TOP + choice[None, :]
    tl.store(weights + place, taken, mask=is_pair)
    tl.store(ids + place, chosen, mask=is_pair)

    # Each pair of a row and a choice finds its block, and its place in it, among all pairs.
    pair = tl.arange(0, 8 * CHOICES)
    number = pair // CHOICES * TOP + pair % CHOICES
    is_used = (pair // CHOICES < rows) & (pair % CHOICES < TOP)
    own = tl.reshape(tl.where(is_pair, chosen, COLUMNS), (8 * CHOICES,))
    is_same = own[:, None] == own[None, :]
    earlier = tl.sum((is_same & (pair[None, :] < pair[:, None])).to(tl.int32), 1)
    count = tl.sum(is_same.to(tl.int32), 1)
    is_first = ((earlier == 0) & is_used).to(tl.int32)
    block = tl.sum(tl.where(own[None, :] < own[:, None], is_first[None, :], 0), 1)
    tl.store(sorted_ids + block * 8 + earlier, number, mask=is_used)
    tl.store(expert_ids + block, own, mask=is_first == 1)
    slot = tl.arange(0, 8)[None, :]
    is_empty = (is_first == 1)[:, None] & (slot >= count[:, None])
    tl.store(sorted_ids + (block * 8)[:, None] + slot, rows * TOP, mask=is_empty)
    tl.store(padded, tl.sum(is_first) * 8)
