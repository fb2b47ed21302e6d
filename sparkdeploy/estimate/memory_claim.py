"""Memory: what a deployment takes from a machine whose GPU and CPU share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkdeploy.node.facts import NodeFact
    from sparkdeploy.recipe.schema import Engine, Recipe

GIB = 2**30
CPU_SERVER_BYTES = 3 * GIB
"""vLLM's CPU build with the twin: measured 2.56 GiB in a container, 3.1 GB RSS outside."""


@dataclass(frozen=True, slots=True)
class MemoryClaim:
    """What one deployment takes of a machine's memory."""

    needed_bytes: int
    floor_bytes: int
    """What has to stay free for the machine beside it."""
    page_cache_counts: bool = True
    """False where CUDA takes from the machine's memory: it counts only what is really free."""

    @property
    def total_bytes(self) -> int:
        return self.needed_bytes + self.floor_bytes


def memory_claim(recipe: Recipe, engine: Engine, node: NodeFact) -> MemoryClaim | None:
    """Return what a recipe takes of a node; None when the node's memory is not known."""
    needed = memory_needed_bytes(recipe, engine, node)
    if needed is None:
        return None
    shares_memory = node.gpu is not None and node.gpu.memory_bytes is None
    return MemoryClaim(
        needed_bytes=needed,
        floor_bytes=int(recipe.limits.memory_floor_gib * GIB),
        page_cache_counts=engine.runs_on == "cpu" or not shares_memory,
    )


def memory_needed_bytes(recipe: Recipe, engine: Engine, node: NodeFact) -> int | None:
    """Return what vLLM will claim: a share of all memory on a GPU, a small server on a CPU."""
    if engine.runs_on == "cpu":
        return CPU_SERVER_BYTES + GIB
    if node.memory_total_bytes is None:
        return None
    return int(recipe.serve.gpu_memory_utilization * node.memory_total_bytes)
