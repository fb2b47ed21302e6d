"""A run as CSV: a line a cell, closed and open loops told apart in a column."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from sparkdeploy.bench.record import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.bench.quantiles import Quantiles
    from sparkdeploy.bench.record import Cell, Run, SuiteResult

_WAITS = ("ttft_s", "tpot_s", "gap_s", "end_to_end_s")
_AT = ("p50", "p95", "p99", "max")
_LOAD = (
    *("arrivals", "rate_per_s", "ramp_s", "window_s", "completed_per_s", "goodput_per_s"),
    *("held", "completion_tok_s", "prompt_tok_s", "most_in_flight", "late_requests", "latest_s"),
)
_SERVER = ("prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits", "preemptions")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A table program takes text that begins so for a formula, and records may come from strangers."""


def csv_text(run: Run) -> str:
    """Return the cells of all suites. Waits are over all counted requests; empty is unknown."""
    rows = [dict(_row(run, suite, cell)) for suite in run.suites for cell in suite.cells]
    out = io.StringIO()
    writer = csv.DictWriter(out, _names(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _names() -> list[str]:
    return [
        *("run_id", "label", "suite", "asking", "prompt", "concurrency", "context_tokens"),
        *("max_tokens", "requests", "failures", *METRICS),
        *(f"all_{name}_{at}" for name in _WAITS for at in _AT),
        *(f"load_{name}" for name in _LOAD),
        *(f"server_{name}" for name in _SERVER),
    ]


def _row(run: Run, suite: SuiteResult, cell: Cell) -> Iterator[tuple[str, object]]:
    for name, text in (("run_id", run.run_id), ("label", run.label), ("suite", suite.name)):
        yield name, _plain(text)
    yield "asking", suite.asking.value
    yield "prompt", _plain(cell.prompt)
    for name in ("concurrency", "context_tokens", "max_tokens", "failures"):
        yield name, getattr(cell, name)
    yield "requests", sum(item.requests for item in cell.rounds)
    yield from ((name, found.mean) for name, found in cell.statistics.items() if name in METRICS)
    for name in _WAITS:
        found: Quantiles | None = getattr(cell.latency, name)
        yield from ((f"all_{name}_{at}", getattr(found, at)) for at in _AT if found is not None)
    if cell.load is not None:
        yield from ((f"load_{name}", getattr(cell.load, name)) for name in _LOAD)
    if cell.server is not None:
        yield from ((f"server_{name}", getattr(cell.server, name)) for name in _SERVER)


def _plain(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
