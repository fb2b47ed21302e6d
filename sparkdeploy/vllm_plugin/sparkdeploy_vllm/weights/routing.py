"""Where a step's few rows take one launch for routing in place of vLLM's four.

vLLM routes within one opaque operator, so what happens here is seen by no compiler and is recorded
in CUDA graphs as it is. Whether ours gives vLLM's choice is looked at before it is used.
"""

from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparkdeploy_vllm.announce import announce_once, warn_once
from sparkdeploy_vllm.weights.conversion import MARLIN_ROWS, MOST_ROWS

if TYPE_CHECKING:
    from sparkdeploy_vllm.weights.routing_kernel import Blocks

MOST_CHOICES = 8
MOST_EXPERTS = 256
"""With 512 experts, of which a row takes ten, one block is slower than vLLM's four launches."""
BLOCKS = "sparkdeploy_blocks"
"""Of a tensor of chosen experts: how they lie in blocks, for the one who asks next."""


def install() -> None:
    """Let vLLM's router ask here first, and Marlin's experts; several calls are one."""
    from vllm.model_executor.layers.fused_moe.experts import marlin_moe
    from vllm.model_executor.layers.fused_moe.router.fused_topk_router import FusedTopKRouter

    plain, align = FusedTopKRouter._compute_routing, marlin_moe.moe_align_block_size
    if hasattr(plain, "__wrapped__"):
        return

    @wraps(plain)
    def compute(
        self: Any, hidden_states: Tensor, router_logits: Tensor, indices_type: Any, **rest: Any
    ) -> tuple[Tensor, Tensor]:
        if fits(self, router_logits, indices_type) and agrees(self, router_logits, plain, align):
            return fused(self, router_logits)
        chosen: tuple[Tensor, Tensor] = plain(
            self, hidden_states, router_logits, indices_type, **rest
        )
        return chosen

    @wraps(align)
    def aligned(topk_ids: Tensor, block_size: int, *rest: Any, **options: Any) -> Any:
        blocks: Blocks | None = getattr(topk_ids, BLOCKS, None)
        expert_map = rest[1] if len(rest) > 1 else options.get("expert_map")
        # With few rows Marlin's blocks are of eight; where it wants others, vLLM sorts.
        if blocks is not None and block_size == MARLIN_ROWS and expert_map is None:
            return blocks
        return align(topk_ids, block_size, *rest, **options)

    FusedTopKRouter._compute_routing = compute
    marlin_moe.moe_align_block_size = aligned
    if hasattr(marlin_moe, "marlin_make_workspace_new"):
        marlin_moe.marlin_make_workspace_new = kept_workspace(marlin_moe.marlin_make_workspace_new)


def kept_workspace(make: Any) -> Any:
    """One workspace a card: Marlin leaves its locks at zero, and need not have them filled again.

    vLLM 0.25 makes one for each layer and step; 0.32 keeps it, too, under another name.
    """
    kept: dict[tuple[Any, ...], Tensor] = {}

    @wraps(make)
    def workspace(device: torch.device, *blocks: int) -> Tensor:
        place = (device, *blocks)
        if place in kept:
            return kept[place]
        made: Tensor = make(*place)
        # What is made while a CUDA graph is captured is that graph's.
        if not torch.cuda.is_current_stream_capturing():
            kept[place] = made
        return made

    return workspace


def fits(router: Any, logits: Tensor, indices_type: Any) -> bool:
    return (
        logits.is_cuda
        and not torch.compiler.is_compiling()
        and 0 < logits.shape[0] <= MOST_ROWS
        and logits.is_contiguous()
        and router.scoring_func == "softmax"
        and router.top_k <= MOST_CHOICES
        and router.top_k <= logits.shape[1] <= MOST_EXPERTS
        and indices_type in {None, torch.int32}
    )


_AGREES: dict[tuple[Any, ...], bool] = {}


def agrees(router: Any, logits: Tensor, plain: Any, align: Any) -> bool:
    """Whether ours is right for such a router; compares once, outside of any capture."""
    kind = (router.top_k, router.renormalize, logits.shape[1], logits.dtype)
    if kind not in _AGREES and not torch.cuda.is_current_stream_capturing():
        _AGREES[kind] = agrees_with(router, logits, plain, align)
    return _AGREES.get(kind, False)


def agrees_with(router: Any, like: Tensor, plain: Any, align: Any) -> bool:
    """Whether eight made-up rows give vLLM's experts, weights and blocks; compiles the kernel."""
    experts = like.shape[1]
    seeded = torch.Generator().manual_seed(1)
    # Multiples of 1/16 that 16 bits hold exactly: no two experts of a row are equal.
    drawn = torch.stack([torch.randperm(experts, generator=seeded) for _ in range(MOST_ROWS)])
    logits = ((drawn - experts // 2) / 16).to(like.device, like.dtype)
    weights, ids = plain(router, logits, logits, None)
    own_weights, own_ids = fused(router, logits)
    wanted = align(ids, MARLIN_ROWS, experts)
    if (
        torch.equal(own_ids, ids)
        and torch.allclose(own_weights, weights, rtol=1e-4, atol=0)
        and _same_blocks(getattr(own_ids, BLOCKS), wanted)
    ):
        announce_once("sparkdeploy: routing in one launch, for up to 8 rows")
        return True
    warn_once("sparkdeploy: routing stays vLLM's own: one launch chooses or sorts otherwise")
    return False


def _same_blocks(ours: "Blocks", wanted: Any) -> bool:
    """Within a block the order is free."""
    used = int(ours.padded)
    if used != int(wanted[2]):
        return False
    rows = (it[:used].view(-1, MARLIN_ROWS).sort(1).values for it in (ours.sorted_ids, wanted[0]))
    count = used // MARLIN_ROWS
    return torch.equal(*rows) and torch.equal(ours.expert_ids[:count], wanted[1][:count])


def fused(router: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
    # Needs Triton, which machines without a GPU lack.
    from sparkdeploy_vllm.weights.routing_kernel import route

    weights, ids, blocks = route(logits, router.top_k, renormalize=router.renormalize)
    setattr(ids, BLOCKS, blocks)
    return weights, ids
