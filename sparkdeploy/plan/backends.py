"""What the engine's log has to show after a start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.recipe.schema import Subject  # noqa: TC001 - read from a label, it is checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sparkdeploy.recipe.load import Resolved


SOCKETS_COST = "every sum between the nodes then takes several times as long"


@dataclass(frozen=True, slots=True)
class PlannedBackend:
    """One choice of vLLM's or NCCL's, as it is wanted."""

    subject: Subject
    wanted: str
    warns_only: bool


def planned_backends(resolved: Resolved) -> tuple[PlannedBackend, ...]:
    """Return what is compared with the log; on a CPU engine only what a CPU build logs.

    Back ends, kernels and graphs of the recipe are those of a GPU.
    """
    serve, backends = resolved.recipe.serve, resolved.recipe.backends
    drafts = serve.speculative
    wanted: dict[Subject, str | None] = {
        # Without a method vLLM tells it from the drafter.
        "speculation": f"{drafts.method or ''} {drafts.tokens}".strip() if drafts else "off",
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


def planned_transport(
    resolved: Resolved, env: Mapping[str, str], adapters: Sequence[str]
) -> tuple[PlannedBackend, ...]:
    """Return how NCCL is to reach the other nodes, from a part's environment; sockets need none.

    `adapters` are those that have to be among what it takes.
    """
    if uses_sockets(env) or not (adapters or env.get("NCCL_IB_HCA")):
        return ()
    return (PlannedBackend("transport", over("IB", adapters), allows_sockets(resolved)),)


def over(network: str, names: Iterable[str]) -> str:
    """Return what a plan, and a log, say of a transport: `NET/IB over rocep1s0f1, roceP2p1s0f1`."""
    listed = ", ".join(names)
    return f"NET/{network}{' over ' if listed else ''}{listed}"


def uses_sockets(env: Mapping[str, str]) -> bool:
    """Say whether the environment makes NCCL do without the adapters, or take another plugin."""
    return env.get("NCCL_IB_DISABLE") == "1" or env.get("NCCL_NET", "IB").upper() != "IB"


def allows_sockets(resolved: Resolved) -> bool:
    """Say whether a recipe puts up with NCCL's own choice of transport."""
    return "transport" in resolved.recipe.backends.warn_only


SOCKETS_ALLOWED = "--set 'backends.warn_only=[transport]'"
"""The override with which a recipe puts up with NCCL's own choice of transport."""
