"""Whether a drafter is worth its time: decided here, and told by `up`, `status` and `bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sparkdeploy.server.metrics import Speculation

LEAST_DRAFTS: Final = 200
"""Fewer say nothing: a start's own requests are a handful."""
LEAST_ACCEPTED: Final = 0.05
"""Accepted / drafted tokens. Twelve drafts a step have about one accepted in prose (0.11, Entrpi's
report of 2.3 tokens a step); quantised drafters were reported with none (vllm#51581)."""
CAUSES: Final = (
    "a drafter made for another model or quantised, cached prefixes "
    "(`--set serve.enable_prefix_caching=false`), or more drafts than the text allows "
    "(`--set serve.speculative.tokens=4`); `--set serve.speculative=null` serves without"
)


def poor_drafter(drafted: Speculation | None) -> str:
    """Return what to say of a drafter that is hardly ever right; empty where that is not known.

    Known it is once LEAST_DRAFTS steps of requests have drafted; all of them are counted.
    """
    if drafted is None or drafted.drafts < LEAST_DRAFTS:
        return ""
    accepted = drafted.acceptance
    if accepted is None or accepted >= LEAST_ACCEPTED:
        return ""
    return (
        f"the drafter costs time: {drafted.accepted_tokens:,} of {drafted.draft_tokens:,} drafted "
        f"tokens were accepted in {drafted.drafts:,} steps ({accepted:.1%}, less than "
        f"{LEAST_ACCEPTED:.0%}); known causes: {CAUSES}"
    )
