"""Holds a run against a floor."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.errors import BenchError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.bench.origin import Origin
    from sparkdeploy.bench.record import Run

GATED_SUITE = "five"
GATED_METRIC = "end_to_end_tok_s"


@dataclass(frozen=True, slots=True)
class Gate:
    """What a run reached, and what it had to reach."""

    reached_tok_s: float
    floor_tok_s: float
    source: str
    failures: int


def floor_of(origin: Origin, floor_tok_s: float | None) -> tuple[float, str]:
    """Return the floor and who says so: the given one, else the recipe's.

    Raises UsageError when there is none, before an hour is spent on measuring.
    """
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
    """Raise UsageError when the suite that is held against the floor is not among these."""
    if GATED_SUITE not in suites:
        raise UsageError(f"--gate needs suite {GATED_SUITE}", hint=f"add --suite {GATED_SUITE}")


def gate_of(run: Run, floor_tok_s: float, source: str) -> Gate:
    """Return the mean over the five prompts, end to end, as published figures are taken."""
    suite = run.suite(GATED_SUITE)
    cells = suite.cells if suite is not None else ()
    means = [
        cell.statistics[GATED_METRIC].mean for cell in cells if GATED_METRIC in cell.statistics
    ]
    failures = sum(cell.failures for cell in cells)
    return Gate(statistics.fmean(means) if means else 0.0, floor_tok_s, source, failures)


def require_gate(gate: Gate) -> None:
    """Raise BenchError when the floor was not reached or a request failed."""
    if gate.failures:
        raise BenchError(f"--gate: {gate.failures} requests failed")
    if gate.reached_tok_s < gate.floor_tok_s:
        raise BenchError(
            f"{gate.reached_tok_s:.1f} tok/s end to end is below the floor of "
            f"{gate.floor_tok_s:g} ({gate.source})"
        )
