"""vLLM's /metrics: Prometheus text, and what its counters say."""

import contextlib
import math
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(?<!\w)([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_SPEC = "vllm:spec_decode_num_"
_SUMMED = {
    "generated_tokens": ("vllm:generation_tokens",),
    "prompt_tokens": ("vllm:prompt_tokens",),
    "finished": ("vllm:request_success",),
    "preemptions": ("vllm:num_preemptions",),
    "prefix_queries": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "prefix_hits": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
}
"""Each by today's name, then by those of earlier releases; where both are there, today's counts."""
_NEVER_FALL = tuple(_SUMMED)[:6]
_KV_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_GAP = ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
LEAST_COUNTED_S = 10.0
"""In less time a mean says nothing."""
LEAST_DRAFTS: Final = 200
"""Fewer say nothing: a start's own requests are a handful."""
LEAST_ACCEPTED: Final = 0.05
"""Accepted / drafted tokens. Twelve drafts a step have about one accepted in prose (0.11, Entrpi's
report of 2.3 tokens a step); quantised drafters were reported with none (vllm#51581)."""
_LOW_ACCEPTANCE_CAUSES: Final = (
    "a drafter made for another model or quantised, cached prefixes "
    "(`--set serve.enable_prefix_caching=false`), or more drafts than the text allows "
    "(`--set serve.speculative.tokens=4`); `--set serve.speculative=null` serves without"
)


@dataclass(frozen=True, slots=True)
class Speculation:
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...] = ()

    @property
    def acceptance(self) -> float | None:
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        """Accepted drafts at each position / steps that drafted."""
        return tuple(n / self.drafts for n in self.accepted_per_position) if self.drafts else ()

    @property
    def tokens_a_step(self) -> float | None:
        """Tokens produced a step that drafted: one sure token and the accepted drafts."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else None

    @property
    def tokens_a_draft(self) -> float | None:
        return self.draft_tokens / self.drafts if self.drafts else None

    def __add__(self, other: "Speculation") -> "Speculation":
        positions = zip_longest(
            self.accepted_per_position, other.accepted_per_position, fillvalue=0
        )
        return Speculation(
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            tuple(map(sum, positions)),
        )

    def since(self, before: "Speculation") -> "Speculation":
        earlier = before.accepted_per_position or (0,) * len(self.accepted_per_position)
        positions = zip(self.accepted_per_position, earlier, strict=True)
        return Speculation(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted_tokens - before.accepted_tokens,
            tuple(now - then for now, then in positions),
        )


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many durations were at most as long as each edge (seconds); the last edge is infinite."""

    edges_s: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    def since(self, before: "Histogram") -> "Histogram":
        """Return what was counted after `before`; all of it where the edges are other ones."""
        if before.edges_s != self.edges_s:
            return self
        pairs = zip(self.counts, before.counts, strict=True)
        return Histogram(self.edges_s, tuple(max(now - then, 0.0) for now, then in pairs))

    def quantile(self, share: float) -> float | None:
        """Return the duration that `share` of all stay within, as histogram_quantile does."""
        if not self.count:
            return None
        rank, lower_s, below = share * self.count, 0.0, 0.0
        for edge_s, count in zip(self.edges_s, self.counts, strict=True):
            if count >= rank and count > below:
                inside = (rank - below) / (count - below)
                return lower_s + (edge_s - lower_s) * inside if math.isfinite(edge_s) else lower_s
            if math.isfinite(edge_s):
                lower_s = edge_s
            below = max(below, count)
        return lower_s


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counters since the server started, and gauges. None: the server does not say."""

    generated_tokens: float | None = None
    prompt_tokens: float | None = None
    finished: float | None = None
    preemptions: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """The highest of all engines, 0 to 1."""
    started_at_s: float | None = None
    """When the server's newest process began, in seconds since 1970 by its machine's clock."""
    first_token: Histogram = Histogram()
    gap: Histogram = Histogram()
    drafted: Speculation | None = None

    def is_after_restart_of(self, before: "Metrics") -> bool:
        """Say whether another server process counts now: counters never fall in one."""
        started = {self.started_at_s, before.started_at_s} - {None}
        pairs = ((getattr(self, name), getattr(before, name)) for name in _NEVER_FALL)
        return len(started) > 1 or any(None not in pair and pair[0] < pair[1] for pair in pairs)

    def finished_a_minute(self, now_s: float) -> float | None:
        """Return the mean since the start; None where that is unknown or hardly ago."""
        if self.finished is None or self.started_at_s is None:
            return None
        counted_s = now_s - self.started_at_s
        return self.finished / counted_s * 60 if counted_s >= LEAST_COUNTED_S else None


def read_metrics(exposition: str) -> Metrics | None:
    families = _Families(exposition)
    if not any(name.startswith("vllm:") for name in families.by_name):
        return None
    return Metrics(
        **{field: families.sum(*names) for field, names in _SUMMED.items()},
        kv_usage=families.highest(*_KV_USAGE),
        started_at_s=families.highest("process_start_time_seconds"),
        first_token=families.histogram("vllm:time_to_first_token_seconds"),
        gap=families.histogram(*_GAP),
        drafted=families.speculation(),
    )


def low_acceptance_warning(drafted: Speculation | None) -> str:
    """Return what to say of a drafter that is hardly ever right; empty below LEAST_DRAFTS steps."""
    if drafted is None or drafted.drafts < LEAST_DRAFTS:
        return ""
    accepted = drafted.acceptance
    if accepted is None or accepted >= LEAST_ACCEPTED:
        return ""
    return (
        f"the drafter costs time: {drafted.accepted_tokens:,} of {drafted.draft_tokens:,} drafted "
        f"tokens were accepted in {drafted.drafts:,} steps ({accepted:.1%}, less than "
        f"{LEAST_ACCEPTED:.0%}); known causes: {_LOW_ACCEPTANCE_CAUSES}"
    )


class _Families:
    """Labels and values by vLLM's own names, without `_total`; broken lines are left out."""

    def __init__(self, exposition: str) -> None:
        self.by_name: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
        for match in filter(None, map(_SAMPLE.match, exposition.splitlines())):
            with contextlib.suppress(ValueError):
                labels, value = dict(_LABEL.findall(match["labels"] or "")), float(match["value"])
                self.by_name[match["name"].removesuffix("_total")].append((labels, value))

    def sum(self, *names: str) -> float | None:
        """Sum the first name that is there over engines and labels; None for no count."""
        found = next((self.by_name[name] for name in names if name in self.by_name), None)
        summed = math.nan if found is None else sum(value for _, value in found)
        return summed if 0 <= summed < math.inf else None

    def highest(self, *names: str) -> float | None:
        values = (value for name in names for _, value in self.by_name.get(name, ()))
        return max(filter(math.isfinite, values), default=None)

    def histogram(self, *names: str) -> Histogram:
        buckets = (self.by_name.get(f"{name}_bucket") for name in names)
        summed: defaultdict[float, float] = defaultdict(float)
        for labels, value in next((found for found in buckets if found), ()):
            with contextlib.suppress(ValueError):
                edge_s = float(labels.get("le", ""))
                if not math.isnan(edge_s) and math.isfinite(value):
                    summed[edge_s] += value
        edges_s = tuple(sorted(summed))
        return Histogram(edges_s, tuple(summed[edge_s] for edge_s in edges_s))

    def speculation(self) -> Speculation | None:
        drafts = self.sum(f"{_SPEC}drafts")
        if drafts is None:
            return None
        positions: defaultdict[int, float] = defaultdict(float)
        for labels, value in self.by_name.get(f"{_SPEC}accepted_tokens_per_pos", ()):
            if math.isfinite(value):
                positions[int(labels.get("position", "0"))] += value
        return Speculation(
            drafts=int(drafts),
            draft_tokens=int(self.sum(f"{_SPEC}draft_tokens") or 0),
            accepted_tokens=int(self.sum(f"{_SPEC}accepted_tokens") or 0),
            accepted_per_position=tuple(int(positions[key]) for key in sorted(positions)),
        )
