"""Prometheus text, and what vLLM counts about speculative decoding."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(?<!\w)([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_SPEC = "vllm:spec_decode_num_"
_TOTAL = "_total"
_FINISHED = "vllm:request_success_total"
_STARTED_AT = "process_start_time_seconds"
LEAST_COUNTED_S = 10.0
"""In less time a mean says nothing."""


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Speculation:
    """Counters of speculative decoding since the server started."""

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...] = ()

    @property
    def acceptance(self) -> float | None:
        """Return accepted / drafted tokens; None before anything was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def tokens_a_draft(self) -> float | None:
        return self.draft_tokens / self.drafts if self.drafts else None

    def since(self, before: Speculation) -> Speculation:
        return Speculation(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted_tokens - before.accepted_tokens,
            tuple(
                now - then
                for now, then in zip(
                    self.accepted_per_position,
                    before.accepted_per_position or (0,) * len(self.accepted_per_position),
                    strict=True,
                )
            ),
        )


def parse_samples(text: str) -> Iterator[Sample]:
    """Yield the samples of a Prometheus exposition; comments and broken lines are left out."""
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        yield Sample(match["name"], dict(_LABEL.findall(match["labels"] or "")), value)


def totals(samples: Iterable[Sample]) -> dict[str, float]:
    """Return each name's sum over all of its labels (engines, positions, buckets)."""
    summed: defaultdict[str, float] = defaultdict(float)
    for sample in samples:
        summed[sample.name] += sample.value
    return dict(summed)


def speculation(samples: Iterable[Sample]) -> Speculation | None:
    """Return the speculation counters, or None when the server has none."""
    named = (sample for sample in samples if sample.name.startswith(_SPEC))
    found = [sample for sample in named if math.isfinite(sample.value)]
    summed = _without_total(totals(found))
    if f"{_SPEC}drafts" not in summed:
        return None
    positions: defaultdict[int, float] = defaultdict(float)
    for sample in found:
        if sample.name.removesuffix(_TOTAL) == f"{_SPEC}accepted_tokens_per_pos":
            positions[int(sample.labels.get("position", "0"))] += sample.value
    return Speculation(
        drafts=int(summed[f"{_SPEC}drafts"]),
        draft_tokens=int(summed.get(f"{_SPEC}draft_tokens", 0)),
        accepted_tokens=int(summed.get(f"{_SPEC}accepted_tokens", 0)),
        accepted_per_position=tuple(int(positions[key]) for key in sorted(positions)),
    )


@dataclass(frozen=True, slots=True)
class FinishedRequests:
    """Requests that were answered to their end, since the server started."""

    requests: int
    started_at_s: float | None
    """When the server's process began, in seconds since 1970; None where it does not tell."""

    def a_minute(self, now_s: float) -> float | None:
        """Return their mean; None where nobody knows since when, or that is hardly ago."""
        if self.started_at_s is None or not now_s - self.started_at_s >= LEAST_COUNTED_S:
            return None
        return self.requests / ((now_s - self.started_at_s) / 60)


def finished_requests(samples: Iterable[Sample]) -> FinishedRequests | None:
    """Return what vLLM counts of finished requests, or None when it counts none."""
    summed = totals(sample for sample in samples if sample.name in {_FINISHED, _STARTED_AT})
    counted = summed.get(_FINISHED)
    if counted is None or not 0 <= counted < math.inf:
        return None
    started_at_s = summed.get(_STARTED_AT, math.nan)
    return FinishedRequests(int(counted), started_at_s if math.isfinite(started_at_s) else None)


def _without_total(summed: Mapping[str, float]) -> dict[str, float]:
    """Return counters by vLLM's own names: Prometheus' text has `_total` behind them, or not."""
    return {name.removesuffix(_TOTAL): value for name, value in summed.items()}
