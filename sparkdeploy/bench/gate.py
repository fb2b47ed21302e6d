"""The floor that `bench --gate` holds a run against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.figures import mean_of
from sparkdeploy.errors import BenchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.bench.record import Run, RunOrigin

GATED_SUITE = "five"
GATED_METRIC = "end_to_end_tok_s"


def floor_of(origin: RunOrigin, floor_tok_s: float | None) -> tuple[float, str]:
    """UsageError when there is none, before an hour is spent on measuring."""
    if floor_tok_s is not None:
        return floor_tok_s, "--floor"
    recipe = origin.recipe
    if recipe is None or recipe.floor_tok_s is None:
        raise UsageError(
            "--gate has no floor: no recipe with expect.end_to_end_tok_s is known",
            hint="give one with --floor TOK_S",
        )
    return recipe.floor_tok_s, recipe.floor_source


def require_gated_suite(suites: Sequence[str]) -> None:
    if GATED_SUITE not in suites:
        raise UsageError(f"--gate needs suite {GATED_SUITE}", hint=f"add --suite {GATED_SUITE}")


def require_gate(run: Run, floor_tok_s: float, source: str) -> None:
    """Judge the mean of the five prompts, end to end, as published figures are taken."""
    suite = run.suite(GATED_SUITE)
    cells = suite.cells if suite is not None else ()
    failures = sum(cell.failures for cell in cells)
    if failures:
        raise BenchError(f"--gate: {failures} requests failed")
    reached_tok_s = mean_of(cells, GATED_METRIC)
    if reached_tok_s < floor_tok_s:
        raise BenchError(
            f"{reached_tok_s:.1f} tok/s end to end is below the floor of {floor_tok_s:g} ({source})"
        )
