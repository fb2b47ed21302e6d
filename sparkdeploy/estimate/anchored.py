"""A second estimate, for recipes that nobody has published a figure of: a parent's less its bytes.

The one factor misses v2 by what a step costs whatever it reads. A recipe that extends v2 has those
costs too, so its step is taken as v2's published one less the time of the bytes it no longer reads:
`tokens / (parent's tokens / parent's published - (parent's modelled s - own modelled s))`. Both
modelled durations are `Speed.duration_s`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.estimate.speed import Speed, SpeedEstimate
    from sparkdeploy.recipe.load import Resolved


@dataclass(frozen=True, slots=True)
class FromPublished:
    """What a parent's published speed makes likely; tokens a second for one request."""

    parent: str
    tok_s: float


def anchored(
    estimates: Sequence[SpeedEstimate], recipes: Mapping[str, Resolved], speed: Speed
) -> tuple[SpeedEstimate, ...]:
    """Return the estimates, each without a published figure with its parent's where one has it.

    On a machine that nothing was measured on they stay as they are: published figures are of
    another one.
    """
    if speed.fitted_to is None:
        return tuple(estimates)
    by_name = {made.name: made for made in estimates}
    return tuple(
        replace(made, from_published=_from_parent(made, by_name, recipes, speed))
        for made in estimates
    )


def _from_parent(
    made: SpeedEstimate,
    by_name: Mapping[str, SpeedEstimate],
    recipes: Mapping[str, Resolved],
    speed: Speed,
) -> FromPublished | None:
    if made.step is None or made.published_tok_s is not None:
        return None
    for name in _parents(made.name, recipes):
        parent = by_name.get(name)
        if parent is None or parent.step is None or parent.published_tok_s is None:
            continue
        if parent.has_own_cache_format or parent.needs_a_fork:
            # Published of something else than what runs here.
            continue
        if made.step.query_rows < parent.step.query_rows:
            # The rows of a request choose alike: what fewer of them save of the experts is not
            # what independent choices say, and the parent never took that long.
            continue
        published_s = parent.step.tokens_per_request / parent.published_tok_s
        saved_s = speed.duration_s(parent.step) - speed.duration_s(made.step)
        if saved_s < published_s:
            return FromPublished(name, made.step.tokens_per_request / (published_s - saved_s))
    return None


def _parents(name: str, recipes: Mapping[str, Resolved]) -> Iterator[str]:
    seen = {name}
    while (found := recipes.get(name)) is not None:
        base = found.recipe.extends
        # A user's recipe may extend the shipped one of its own name.
        if base is None or base in seen:
            return
        seen.add(base)
        yield base
        name = base
