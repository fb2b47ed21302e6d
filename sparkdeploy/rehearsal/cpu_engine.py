"""Which engine for CPUs stands in for a recipe's own: the one of the nearest release."""

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
    newest_first = sorted(
        (engine for engine in candidates if engine.kind == "cpu"),
        key=lambda engine: parse_version(engine.vllm),
        reverse=True,
    )
    if is_unknown(own):
        return newest_first
    wanted = _number(own)
    return sorted(newest_first, key=lambda engine: abs(_number(engine) - wanted))


def _number(engine: Engine) -> int:
    major, minor, patch = parse_version(engine.vllm)
    return (major * 1000 + minor) * 1000 + patch
