"""The server's own counters, before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.bench.record import ServerDelta
from sparkdeploy.server.metrics import Speculation, parse_samples, speculation, totals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_COUNTED = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "preemptions": "vllm:num_preemptions_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
}
_KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters at one moment; a missing one is None."""

    values: Mapping[str, int]
    speculation: Speculation | None
    kv_usage: float | None

    def generated_since(self, before: Counters) -> int | None:
        """Return the tokens generated after `before`; None where the server does not say."""
        if "generation_tokens" not in self.values:
            return None
        return self.values["generation_tokens"] - before.values.get("generation_tokens", 0)


def read_counters(exposition: str) -> Counters | None:
    """Read /metrics; None for a server that counts nothing we know."""
    samples = tuple(parse_samples(exposition))
    summed = totals(samples)
    values = {name: int(summed[key]) for name, key in _COUNTED.items() if key in summed}
    if not values:
        return None
    usage = next((summed[name] for name in _KV_USAGE if name in summed), None)
    return Counters(values, speculation(samples), usage)


def difference(before: Counters, after: Counters) -> ServerDelta:
    """Return what was counted between two moments."""
    drafted = _drafted(before, after)
    return ServerDelta(
        **{
            name: value - before.values.get(name, 0)
            for name, value in after.values.items()
            if name in _COUNTED
        },
        drafts=drafted.drafts if drafted else None,
        draft_tokens=drafted.draft_tokens if drafted else None,
        accepted_tokens=drafted.accepted_tokens if drafted else None,
        accepted_per_position=drafted.accepted_per_position if drafted else (),
        kv_usage_before=before.kv_usage,
        kv_usage_after=after.kv_usage,
    )


def together(deltas: Iterable[ServerDelta], *, kv_usage_peak: float | None) -> ServerDelta | None:
    """Add up what was counted in several spans; None for none."""
    found = tuple(deltas)
    if not found:
        return None
    return ServerDelta(
        prompt_tokens=_sum(item.prompt_tokens for item in found),
        generation_tokens=_sum(item.generation_tokens for item in found),
        preemptions=_sum(item.preemptions for item in found),
        drafts=_sum(item.drafts for item in found),
        draft_tokens=_sum(item.draft_tokens for item in found),
        accepted_tokens=_sum(item.accepted_tokens for item in found),
        accepted_per_position=_sum_positions(item.accepted_per_position for item in found),
        prefix_queries=_sum(item.prefix_queries for item in found),
        prefix_hits=_sum(item.prefix_hits for item in found),
        kv_usage_before=found[0].kv_usage_before,
        kv_usage_after=found[-1].kv_usage_after,
        kv_usage_peak=kv_usage_peak,
    )


def _drafted(before: Counters, after: Counters) -> Speculation | None:
    if after.speculation is None or before.speculation is None:
        return after.speculation
    return after.speculation.since(before.speculation)


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _sum_positions(counts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    known = [item for item in counts if item]
    return tuple(map(sum, zip(*known, strict=True))) if known else ()
