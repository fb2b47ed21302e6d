"""Memory: what a deployment takes from a machine whose GPU and CPU share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.console import format_gib
from sparkdeploy.plan.steps import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.plan.observed import NodeFact
    from sparkdeploy.recipe.schema import Engine, Recipe

GIB = 2**30
CPU_SERVER_BYTES = 3 * GIB
"""vLLM's CPU build with the twin: 2.56 GiB in a container, 3.1 GB RSS (rehearsal.md 2 and 3)."""


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
        """Return all that has to be there."""
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


def memory_problems(
    recipe: Recipe,
    engine: Engine,
    node: NodeFact,
    *,
    model_bytes: int | None,
    freed_bytes: int,
    promised_bytes: int = 0,
) -> Iterator[Problem]:
    """Yield what is wrong with the machine's memory for this recipe.

    `freed_bytes` is what a deployment that will be replaced gives back first; `promised_bytes` is
    what the other deployments were planned to take, whether they have taken it yet or not.
    """
    claim = memory_claim(recipe, engine, node)
    if claim is None or node.memory_total_bytes is None:
        return
    needed = claim.needed_bytes
    if engine.runs_on != "cpu" and model_bytes is not None and model_bytes > needed:
        yield Problem(
            "machine.memory",
            "node",
            f"memory: the weights alone take {format_gib(model_bytes)}, and "
            f"{recipe.serve.gpu_memory_utilization:g} of this machine is {format_gib(needed)}",
            "use a machine with more memory, two of them with --cluster, or a smaller model",
        )
        return
    available = node.memory_total_bytes - promised_bytes
    if node.memory_available_bytes is not None:
        available = min(node.memory_available_bytes + freed_bytes, available)
    yield from shortage(claim, available)


def shortage(claim: MemoryClaim, available_bytes: int) -> Iterator[Problem]:
    """Yield the problem when a claim is larger than what is available."""
    if available_bytes < claim.total_bytes:
        yield Problem(
            "machine.memory",
            "node",
            f"memory: {format_gib(claim.needed_bytes)} needed and {format_gib(claim.floor_bytes)} "
            f"kept free for the machine, but only {format_gib(available_bytes)} are available",
            "stop other programs (`sparkdeploy status` shows ours), drop the page cache, or lower "
            "serve.gpu_memory_utilization",
        )
