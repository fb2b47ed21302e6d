"""Which engine for CPUs stands in for a recipe's own.

The twin is served by the nearest release: its drafts and treatments were shown on each. Of other
families vLLM for CPUs learned one after the other (0.25.1 has no latent attention), so that a
stand-in is served by the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.recipe.features import parse_version
from sparkdeploy.recipe.settled import is_unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.recipe.engine import Engine


def by_nearness(own: Engine, candidates: Iterable[Engine]) -> list[Engine]:
    """Return the engines for CPUs among these, the one nearest to the recipe's own first.

    Between two that are equally near the newer one goes first, and the newest of all where nobody
    knows what release an image has.
    """
    engines = newest_first(own, candidates)
    if is_unknown(own):
        return engines
    wanted = _number(own)
    return sorted(engines, key=lambda engine: abs(_number(engine) - wanted))


def newest_first(_own: Engine, candidates: Iterable[Engine]) -> list[Engine]:
    """Return the engines for CPUs among these, whatever the recipe's own is."""
    for_cpus = (engine for engine in candidates if engine.kind == "cpu")
    return sorted(for_cpus, key=lambda engine: parse_version(engine.vllm), reverse=True)


def _number(engine: Engine) -> int:
    major, minor, patch = parse_version(engine.vllm)
    return (major * 1000 + minor) * 1000 + patch
