"""What Prometheus computes from vLLM's counters. Their names are those of vLLM 0.19 to 0.33."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_LIMIT_S = "2.5"
GAP_LIMIT_S = "0.1"
"""Both are edges of vLLM's buckets, as Prometheus writes them."""
WINDOW = "5m"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_AT = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
FINISHED = "vllm:request_success_total"
FIRST = "vllm:time_to_first_token_seconds"
GAP_OF_REQUEST = "vllm:request_time_per_output_token_seconds"
GENERATED = "vllm:generation_tokens_total"
PROMPTED = "vllm:prompt_tokens_total"
CACHE_HITS = "vllm:prefix_cache_hits_total"
CACHE_QUERIES = "vllm:prefix_cache_queries_total"


@dataclass(frozen=True, slots=True)
class RecordedRule:
    name: str
    expression: str


def recording_rules() -> dict[str, Any]:
    """Return Prometheus' rule groups; the second reads what the first has recorded."""
    groups = {"sparkdeploy": [*_rates(), *_drafts()], "sparkdeploy-goodput": [*_goodput()]}
    return {
        "groups": [
            {
                "name": name,
                "rules": [{"record": it.name, "expr": it.expression} for it in rules],
            }
            for name, rules in groups.items()
        ]
    }


def _rates() -> Iterator[RecordedRule]:
    yield RecordedRule("deployment:generated_tokens:rate1m", _rate(GENERATED, "1m"))
    yield RecordedRule("deployment:prompt_tokens:rate1m", _rate(PROMPTED, "1m"))
    yield RecordedRule("deployment:requests:rate5m", _rate(FINISHED))
    yield RecordedRule("deployment:prefix_hits:ratio5m", _ratio(CACHE_HITS, CACHE_QUERIES))
    for quantile in (50, 95):
        for name, metric in (
            ("first_token", FIRST),
            ("gap", "vllm:inter_token_latency_seconds"),
        ):
            buckets = f"sum by (deployment, le) (rate({metric}_bucket[{WINDOW}]))"
            expression = f"histogram_quantile({quantile / 100:g}, {buckets})"
            yield RecordedRule(f"deployment:{name}_seconds:p{quantile}_5m", expression)


def _drafts() -> Iterator[RecordedRule]:
    yield RecordedRule("deployment:draft_acceptance:ratio5m", _ratio(ACCEPTED, DRAFTED))
    # The token that vLLM itself adds to each draft counts.
    yield RecordedRule("deployment:accepted_length:mean5m", f"1 + {_ratio(ACCEPTED, DRAFTS)}")
    by_position = f"sum by (deployment, position) (rate({ACCEPTED_AT}[{WINDOW}]))"
    yield RecordedRule(
        "deployment_position:draft_acceptance:ratio5m",
        f"{by_position} / on (deployment) group_left () {_rate(DRAFTS)}",
    )


def _goodput() -> Iterator[RecordedRule]:
    """Yield how many requests a second kept both limits, at most.

    Buckets tell how many kept each limit, not how many kept both: no more than the lesser number.
    """
    first = _share(FIRST, FIRST_LIMIT_S)
    gap = _share(GAP_OF_REQUEST, GAP_LIMIT_S)
    yield RecordedRule("deployment:first_token_in_time:ratio5m", first)
    yield RecordedRule("deployment:gap_in_time:ratio5m", gap)
    lesser = (
        "(deployment:first_token_in_time:ratio5m <= deployment:gap_in_time:ratio5m "
        "or deployment:gap_in_time:ratio5m)"
    )
    yield RecordedRule("deployment:goodput:rate5m", f"deployment:requests:rate5m * {lesser}")


def _rate(metric: str, window: str = WINDOW) -> str:
    return f"sum by (deployment) (rate({metric}[{window}]))"


def _ratio(part: str, whole: str) -> str:
    return f"{_rate(part)} / {_rate(whole)}"


def _share(histogram: str, limit: str) -> str:
    kept = f'sum by (deployment) (rate({histogram}_bucket{{le="{limit}"}}[{WINDOW}]))'
    return f"{kept} / {_rate(f'{histogram}_count')}"
