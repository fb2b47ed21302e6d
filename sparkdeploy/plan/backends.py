"""What the engine's log has to show after a start, from the recipe alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.recipe.schema import Subject  # noqa: TC001 - read from a label, it is checked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe

GRAPHS_OFF = "off"


@dataclass(frozen=True, slots=True)
class PlannedBackend:
    """One choice of vLLM's, as the recipe wants it."""

    subject: Subject
    wanted: str
    warns_only: bool


def planned_backends(resolved: Resolved) -> tuple[PlannedBackend, ...]:
    """Return what is to be held against the log; on a CPU engine only what a CPU build tells.

    Back ends, kernels and graphs of the recipe are those of a GPU.
    """
    recipe = resolved.recipe
    wanted = dict(_told_by_every_engine(recipe))
    if resolved.engine.runs_on != "cpu":
        wanted.update(_told_by_a_gpu(recipe))
    return tuple(
        PlannedBackend(subject, value, subject in recipe.backends.warn_only)
        for subject, value in wanted.items()
    )


def _told_by_every_engine(recipe: Recipe) -> Iterator[tuple[Subject, str]]:
    speculative = recipe.serve.speculative
    yield "speculation", f"{speculative.method} {speculative.tokens}" if speculative else "off"
    if recipe.serve.kv_cache_dtype != "auto":
        yield "kv_cache", recipe.serve.kv_cache_dtype


def _told_by_a_gpu(recipe: Recipe) -> Iterator[tuple[Subject, str]]:
    if recipe.serve.attention_backend is not None:
        yield "attention", recipe.serve.attention_backend
    if recipe.backends.moe is not None:
        yield "moe", recipe.backends.moe
    if recipe.backends.linear is not None:
        yield "linear", recipe.backends.linear
    graphs = GRAPHS_OFF if recipe.serve.enforce_eager else recipe.backends.graphs
    if graphs is not None:
        yield "graphs", graphs
