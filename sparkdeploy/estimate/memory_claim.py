"""Memory: what a deployment takes from a machine, and what its GPU has for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkdeploy.node.facts import NodeFact
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.schema import Recipe

GIB = 2**30
CPU_SERVER_BYTES = 3 * GIB
"""vLLM's CPU build with the tiny model: measured 2.56 GiB in a container, 3.1 GB RSS outside."""
HOST_BYTES = 8 * GIB
"""For vLLM's processes and pinned buffers beside a GPU with memory of its own; not measured."""


@dataclass(frozen=True, slots=True)
class MemoryClaim:
    needed_bytes: int
    """Of the machine's memory."""
    floor_bytes: int
    """What has to stay free for the machine beside it."""
    page_cache_counts: bool = True
    """False where CUDA takes from the machine's memory: it counts only what is really free."""
    vllm_bytes: int | None = None
    """What vLLM may use on the GPU: on a Spark what is needed. None where there is no GPU's."""

    @property
    def total_bytes(self) -> int:
        return self.needed_bytes + self.floor_bytes


def memory_claim(recipe: Recipe, engine: Engine, node: NodeFact) -> MemoryClaim | None:
    """Return what a recipe takes of a node; None when the node's memory is not known."""
    floor_bytes = int(recipe.limits.memory_floor_gib * GIB)
    if engine.runs_on == "cpu":
        return MemoryClaim(CPU_SERVER_BYTES + GIB, floor_bytes)
    share = recipe.serve.gpu_memory_utilization
    if node.gpu is not None and node.gpu.memory_bytes is not None:
        vllm_bytes = int(share * node.gpu.memory_bytes)
        return MemoryClaim(HOST_BYTES, floor_bytes, vllm_bytes=vllm_bytes)
    if node.memory_total_bytes is None:
        return None
    needed_bytes = int(share * node.memory_total_bytes)
    return MemoryClaim(
        needed_bytes,
        floor_bytes,
        page_cache_counts=node.gpu is None,
        vllm_bytes=needed_bytes,
    )
