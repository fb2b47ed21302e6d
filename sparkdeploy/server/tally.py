"""What a server counts, at one moment: its /metrics read once a second at the price of little."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.server.metrics import Speculation, parse_samples, speculation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sparkdeploy.server.metrics import Sample

_COUNTED = {
    "generated_tokens": ("vllm:generation_tokens",),
    "prompt_tokens": ("vllm:prompt_tokens",),
    "finished": ("vllm:request_success",),
    "preemptions": ("vllm:num_preemptions",),
    "prefix_queries": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "prefix_hits": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
}
"""Each by today's name, then by those of earlier releases; where both are there, today's counts."""
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_FIRST_TOKEN = ("vllm:time_to_first_token_seconds",)
_GAP = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
_STARTED = "process_start_time_seconds"
_TOTAL = "_total"
_BUCKET = "_bucket"
_EDGE = "le"
_SPEC = "vllm:spec_decode_num_"
_COUNTERS = tuple(name for names in _COUNTED.values() for name in names)
_GAUGES = (_RUNNING, _WAITING, *_KV_USAGE, _STARTED)
_HISTOGRAMS = (*_FIRST_TOKEN, *_GAP)
# Of a thousand lines a hundred are wanted, and only those are taken apart.
_WANTED = re.compile(
    rf"^(?:(?:{'|'.join(_COUNTERS)})(?:{_TOTAL})?|{'|'.join(_GAUGES)}"
    rf"|(?:{'|'.join(_HISTOGRAMS)}){_BUCKET}|{_SPEC}[a-z_]+)[{{ ].*$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many were at most as long as each edge (seconds); the last edge is infinite."""

    edges_s: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    """Cumulative, one an edge."""

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    def since(self, before: Histogram) -> Histogram:
        """Return what came after `before`; all of it where the edges are other ones."""
        if before.edges_s != self.edges_s:
            return self
        pairs = zip(self.counts, before.counts, strict=True)
        return Histogram(self.edges_s, tuple(max(now - then, 0.0) for now, then in pairs))

    def quantile(self, share: float) -> float | None:
        """Return the duration that `share` (0 to 1) of all stay within; None where there are none.

        Between two edges a straight line is drawn, as Prometheus' histogram_quantile does. Of what
        lies beyond the last finite edge it returns that edge: more is not known.
        """
        if not self.count:
            return None
        rank = share * self.count
        lower_s, below = 0.0, 0.0
        for edge_s, count in zip(self.edges_s, self.counts, strict=True):
            if count >= rank and count > below:
                inside = (rank - below) / (count - below)
                return lower_s + (edge_s - lower_s) * inside if math.isfinite(edge_s) else lower_s
            if math.isfinite(edge_s):
                lower_s = edge_s
            below = max(below, count)
        return lower_s


@dataclass(frozen=True, slots=True)
class Tally:
    """Counters since the server started, and what is so at this moment. None: it does not say."""

    generated_tokens: float | None = None
    prompt_tokens: float | None = None
    finished: float | None = None
    """Requests that were answered to their end."""
    preemptions: float | None = None
    prefix_queries: float | None = None
    """Tokens that were looked for in the prefix cache."""
    prefix_hits: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """The highest of all engines, 0 to 1."""
    started_at_s: float | None = None
    """When the server's process began, by its machine's clock."""
    first_token: Histogram = Histogram()
    gap: Histogram = Histogram()
    """Between two tokens of an answer."""
    drafted: Speculation | None = None

    def is_after_restart_of(self, before: Tally) -> bool:
        """Say whether another server process counts now: counters never fall in one."""
        started = {self.started_at_s, before.started_at_s} - {None}
        fell = (
            (now, then)
            for name in _COUNTED
            if (now := getattr(self, name)) is not None
            and (then := getattr(before, name)) is not None
        )
        return len(started) > 1 or any(now < then for now, then in fell)


def read_tally(exposition: str) -> Tally | None:
    """Read /metrics; None where nothing in it is vLLM's."""
    wanted = "\n".join(_WANTED.findall(exposition))
    by_name: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in parse_samples(wanted):
        if math.isfinite(sample.value):
            by_name[sample.name.removesuffix(_TOTAL)].append(sample)
    if not any(name.startswith("vllm:") for name in by_name):
        return None
    counted = {name: _sum(by_name, names) for name, names in _COUNTED.items()}
    usage = [sample.value for name in _KV_USAGE for sample in by_name.get(name, ())]
    spec = [it for name, found in by_name.items() if name.startswith(_SPEC) for it in found]
    return Tally(
        **counted,
        running=_sum(by_name, (_RUNNING,)),
        waiting=_sum(by_name, (_WAITING,)),
        kv_usage=max(usage, default=None),
        started_at_s=max((it.value for it in by_name.get(_STARTED, ())), default=None),
        first_token=_histogram(by_name, _FIRST_TOKEN),
        gap=_histogram(by_name, _GAP),
        drafted=speculation(spec),
    )


def _sum(by_name: Mapping[str, Sequence[Sample]], names: Iterable[str]) -> float | None:
    """Sum over engines and labels of the first name that is there."""
    found = next((by_name[name] for name in names if name in by_name), None)
    return None if found is None else sum(sample.value for sample in found)


def _histogram(by_name: Mapping[str, Sequence[Sample]], names: Iterable[str]) -> Histogram:
    buckets = (by_name.get(name + _BUCKET) for name in names)
    summed: defaultdict[float, float] = defaultdict(float)
    for sample in next((found for found in buckets if found), ()):
        edge_s = _edge(sample.labels.get(_EDGE, ""))
        if edge_s is not None:
            summed[edge_s] += sample.value
    edges_s = tuple(sorted(summed))
    return Histogram(edges_s, tuple(summed[edge_s] for edge_s in edges_s))


def _edge(text: str) -> float | None:
    try:
        edge_s = float(text)
    except ValueError:
        return None
    return None if math.isnan(edge_s) else edge_s
