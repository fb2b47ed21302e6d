"""What runs against what was planned, as far as the engine's log tells."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.plan.backends import PlannedBackend
    from sparkdeploy.server.facts import EngineFacts

_GRAPH_RANKS = {"off": 0, "piecewise": 1, "full": 2}
_FORMATS = {"fp8": {"fp8", "fp8_e4m3", "fp8_ds_mla"}, "nvfp4": {"nvfp4", "nvfp4_ds_mla"}}
"""Names of vLLM's for the same KV cache format; `_ds_mla` is how sparse MLA lays it out."""

_COSTS = {"transport": "; one adapter has half the rate of a port, and sockets far less"}
"""What is lost by another choice, where its name does not say so."""


class Agreement(Enum):
    """How the log answers to a plan."""

    AS_PLANNED = "as planned"
    DIFFERS = "differs"
    NOT_TOLD = "not told"
    """This release of vLLM does not say; nothing is claimed."""


@dataclass(frozen=True, slots=True)
class BackendFinding:
    """One choice of the engine's: wanted, seen, and what follows."""

    planned: PlannedBackend
    seen: str | None
    agreement: Agreement

    @property
    def is_failure(self) -> bool:
        """Say whether the deployment may not stay.

        A line of vLLM's log may be worded otherwise tomorrow, and what serves is not stopped for
        it. NCCL says itself that it goes over sockets, and its lines have stayed for years.
        """
        is_transport = self.planned.subject == "transport"
        return is_transport and self.agreement is Agreement.DIFFERS and not self.planned.warns_only

    def describe(self) -> str:
        told = self.seen if self.seen is not None else "the log does not say"
        costs = _COSTS.get(self.planned.subject, "")
        return f"{self.planned.subject}: planned {self.planned.wanted}, runs {told}{costs}"


def findings(planned: Iterable[PlannedBackend], facts: EngineFacts) -> tuple[BackendFinding, ...]:
    """Hold every planned choice against the log; a log that is silent fails nothing."""
    told = {
        "attention": facts.attention_backend,
        "moe": facts.moe_backend,
        "linear": ", ".join(facts.linear_kernels) or None,
        "kv_cache": facts.kv_cache_dtype,
        "speculation": facts.speculation,
        "graphs": facts.graph_mode,
        "transport": facts.transport.describe(),
    }
    return tuple(
        BackendFinding(item, told[item.subject], _agreement(item, told[item.subject]))
        for item in planned
    )


def _agreement(planned: PlannedBackend, seen: str | None) -> Agreement:
    if seen is None or _lacks_adapters(planned, seen):
        return Agreement.NOT_TOLD
    return Agreement.AS_PLANNED if _agrees(planned, seen) else Agreement.DIFFERS


def _agrees(planned: PlannedBackend, seen: str) -> bool:
    wanted = planned.wanted
    if planned.subject == "linear":
        return wanted in seen.split(", ")
    if planned.subject == "kv_cache":
        return seen in _FORMATS.get(wanted, {wanted})
    if planned.subject == "speculation":
        return _drafts_alike(wanted, seen)
    if planned.subject == "transport":
        network, names = _split_transport(wanted)
        seen_network, seen_names = _split_transport(seen)
        # NCCL takes a name for all that begin with it.
        are_taken = all(any(it.startswith(name) for it in seen_names) for name in names)
        return network == seen_network and are_taken
    if planned.subject == "graphs":
        return _graph_rank(seen) >= _GRAPH_RANKS[wanted]
    return seen.upper() == wanted.upper()


def _drafts_alike(wanted: str, seen: str) -> bool:
    """Some releases name MTP after the model, `qwen3_5_mtp`, and recipes may do so too."""
    (*method, tokens), (*seen_method, seen_tokens) = wanted.split(), seen.split()
    is_named_alike = not method or method == seen_method
    is_mtp = all(name and name[0].endswith("mtp") for name in (method, seen_method))
    return tokens == seen_tokens and (is_named_alike or is_mtp)


def _lacks_adapters(planned: PlannedBackend, seen: str) -> bool:
    """Say whether the network is the planned one, and the log does not say over what."""
    if planned.subject != "transport":
        return False
    network, names = _split_transport(planned.wanted)
    return bool(names) and _split_transport(seen) == (network, set())


def _split_transport(text: str) -> tuple[str, set[str]]:
    network, _, names = text.partition(" over ")
    return network, set(filter(None, names.split(", ")))


def _graph_rank(mode: str) -> int:
    if "FULL" in mode:
        return _GRAPH_RANKS["full"]
    return _GRAPH_RANKS["piecewise" if "PIECEWISE" in mode else "off"]
