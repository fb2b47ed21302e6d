"""What the engine's log has to show after a start, from the recipe alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.recipe.schema import Subject  # noqa: TC001 - read from a label, it is checked

if TYPE_CHECKING:
    from sparkdeploy.recipe.load import Resolved


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
    serve, backends = resolved.recipe.serve, resolved.recipe.backends
    drafts = serve.speculative
    wanted: dict[Subject, str | None] = {
        "speculation": f"{drafts.method} {drafts.tokens}" if drafts else "off",
        "kv_cache": serve.kv_cache_dtype if serve.kv_cache_dtype != "auto" else None,
    }
    if resolved.engine.runs_on != "cpu":
        wanted |= {
            "attention": serve.attention_backend,
            "moe": backends.moe,
            "linear": backends.linear,
            "graphs": "off" if serve.enforce_eager else backends.graphs,
        }
    return tuple(
        PlannedBackend(subject, value, subject in backends.warn_only)
        for subject, value in wanted.items()
        if value is not None
    )
