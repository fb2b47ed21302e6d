"""What runs against what was planned, as far as the engine's log says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.plan.launch import PlannedBackend
    from sparkdeploy.server.facts import EngineFacts

_FORMATS = {"fp8": {"fp8", "fp8_e4m3", "fp8_ds_mla"}, "nvfp4": {"nvfp4", "nvfp4_ds_mla"}}
"""Names of vLLM's for the same KV cache format; `_ds_mla` is how sparse MLA lays it out."""


class Match(Enum):
    AS_PLANNED = "as planned"
    DIFFERS = "differs"
    NOT_LOGGED = "not logged"
    """This release of vLLM does not say; nothing is claimed."""


@dataclass(frozen=True, slots=True)
class BackendCheck:
    """One choice of the engine's: planned, seen, and what follows."""

    planned: PlannedBackend
    seen: str | None
    match: Match

    @property
    def is_failure(self) -> bool:
        """Say whether the deployment may not stay.

        A line of vLLM's log may be worded otherwise tomorrow, and what serves is not stopped for
        it. NCCL says itself that it goes over sockets, and its lines have stayed for years.
        """
        is_transport = self.planned.subject == "transport"
        return is_transport and self.match is Match.DIFFERS and not self.planned.warns_only

    def describe(self) -> str:
        runs = self.seen if self.seen is not None else "the log does not say"
        cost = "; one adapter has half the rate of a port, and sockets far less"
        cost = cost if self.planned.subject == "transport" else ""
        return f"{self.planned.subject}: planned {self.planned.wanted}, runs {runs}{cost}"


def compare_backends(
    planned: Iterable[PlannedBackend], facts: EngineFacts
) -> tuple[BackendCheck, ...]:
    """Compare every planned choice with the log; a log that is silent fails nothing."""
    logged = {
        "attention": facts.attention_backend,
        "moe": facts.moe_backend,
        "linear": ", ".join(facts.linear_kernels) or None,
        "kv_cache": facts.kv_cache_dtype,
        "speculation": facts.speculation,
        "graphs": facts.graph_mode,
        "transport": facts.transport.describe(),
    }
    return tuple(
        BackendCheck(item, seen, _match(item.subject, item.wanted, seen))
        for item in planned
        for seen in [logged[item.subject]]
    )


def _match(subject: str, wanted: str, seen: str | None) -> Match:
    if seen is None:
        return Match.NOT_LOGGED
    if subject == "transport":
        return _transport_match(wanted, seen)
    if subject == "linear":
        is_same = wanted in seen.split(", ")
    elif subject == "kv_cache":
        is_same = seen in _FORMATS.get(wanted, {wanted})
    elif subject == "speculation":
        is_same = _drafts_alike(wanted, seen)
    elif subject == "graphs":
        is_same = _graph_rank(seen) >= _graph_rank(wanted.upper())
    else:
        is_same = seen.upper() == wanted.upper()
    return Match.AS_PLANNED if is_same else Match.DIFFERS


def _drafts_alike(wanted: str, seen: str) -> bool:
    """Some releases name MTP after the model, `qwen3_5_mtp`, and recipes may do so too."""
    (*method, tokens), (*seen_method, seen_tokens) = wanted.split(), seen.split()
    is_named_alike = not method or method == seen_method
    is_mtp = all(name and name[0].endswith("mtp") for name in (method, seen_method))
    return tokens == seen_tokens and (is_named_alike or is_mtp)


def _transport_match(wanted: str, seen: str) -> Match:
    network, _, names = wanted.partition(" over ")
    seen_network, _, seen_names = seen.partition(" over ")
    if network != seen_network:
        return Match.DIFFERS
    if names and not seen_names:
        return Match.NOT_LOGGED
    # NCCL takes a name for all that begin with it.
    adapters = seen_names.split(", ")
    are_used = all(any(it.startswith(name) for it in adapters) for name in names.split(", "))
    return Match.AS_PLANNED if are_used else Match.DIFFERS


def _graph_rank(mode: str) -> int:
    return 2 if "FULL" in mode else 1 if "PIECEWISE" in mode else 0
