"""When a drafter is said to cost time, from counters as vLLM writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.server.drafting import LEAST_ACCEPTED, LEAST_DRAFTS, poor_drafter
from sparkdeploy.server.metrics import Speculation, parse_samples, speculation

RECORDED = Path(__file__).with_name("metrics") / "cpu-0.32-dflash-12.txt"
"""vLLM 0.32 for CPUs with a twin's made drafter, twelve tokens a step."""


@pytest.mark.parametrize(
    ("drafts", "tokens", "accepted", "is_said"),
    [
        (LEAST_DRAFTS, 2400, 119, True),
        (LEAST_DRAFTS, 2400, 120, False),
        (LEAST_DRAFTS - 1, 2388, 0, False),
        (10_000, 120_000, 0, True),
        # Nothing was drafted in steps that might have: other clients' requests forbade it.
        (LEAST_DRAFTS, 0, 0, False),
    ],
)
def test_it_takes_two_hundred_steps_and_less_than_one_in_twenty(
    drafts: int, tokens: int, accepted: int, is_said: bool
) -> None:
    assert bool(poor_drafter(Speculation(drafts, tokens, accepted))) is is_said


def test_a_server_that_counts_no_drafts_is_not_spoken_of() -> None:
    assert poor_drafter(None) == ""
    assert speculation(parse_samples("vllm:generation_tokens_total 7\n")) is None


@given(drafts=st.integers(0, 10**6), tokens=st.integers(1, 15), accepted=st.floats(0, 1, width=32))
def test_what_is_said_has_the_figures_and_a_way_out(
    drafts: int, tokens: int, accepted: float
) -> None:
    counted = Speculation(drafts, drafts * tokens, int(drafts * tokens * accepted))
    said = poor_drafter(counted)
    known = drafts >= LEAST_DRAFTS and counted.draft_tokens > 0
    assert bool(said) is (known and counted.accepted_tokens < LEAST_ACCEPTED * counted.draft_tokens)
    if said:
        assert f"{counted.accepted_tokens:,} of {counted.draft_tokens:,} drafted tokens" in said
        assert "--set serve.speculative=null" in said


@pytest.mark.parametrize("suffix", ["_total", ""])
def test_recorded_counters_are_read_under_both_of_their_names(suffix: str) -> None:
    """Prometheus' text adds `_total`; vLLM's own names, as 0.25's documentation has them, do not.

    `_created` beside each is a time, and no count.
    """
    text = RECORDED.read_text().replace("_total{", f"{suffix}{{")
    counted = speculation(parse_samples(text))
    assert counted is not None
    assert (counted.drafts, counted.draft_tokens, counted.accepted_tokens) == (321, 3852, 179)
    assert counted.accepted_per_position == (179, *(0,) * 11)
    said = poor_drafter(counted)
    assert "179 of 3,852 drafted tokens were accepted in 321 steps (4.6%, less than 5%)" in said


def test_engines_of_one_server_are_counted_together() -> None:
    lines = [
        f'vllm:spec_decode_num_{name}_total{{engine="{engine}"}} {count}'
        for name, count in {"drafts": 150, "draft_tokens": 600, "accepted_tokens": 3}.items()
        for engine in (0, 1)
    ]
    assert "6 of 1,200 drafted tokens" in poor_drafter(speculation(parse_samples("\n".join(lines))))


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_figures_that_are_none_end_in_nothing(value: str) -> None:
    assert speculation(parse_samples(f"vllm:spec_decode_num_drafts_total {value}\n")) is None
