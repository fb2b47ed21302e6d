"""A load as a person reads it on a terminal: one line a rate, and what was held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.load.plan import Slo
from sparkdeploy.terminal.tables import Fill, TextColumn, TextTable, row_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.bench.load.record import Quantiles, SustainedRate
    from sparkdeploy.bench.record import Cell, SuiteResult
    from sparkdeploy.terminal.tables import Block

_HEAD = (
    *("asked/s", "done/s", "good/s", "held", "TTFT p50", "p95", "gap p99", "e2e p95"),
    *("tok/s", "at once", "failed"),
)


def load_lines(suite: SuiteResult) -> Iterator[Block]:
    loads = [cell.load for cell in suite.cells if cell.load is not None]
    if not loads:
        return
    ramp = f", after a ramp of {loads[0].ramp_s:g} s" if loads[0].ramp_s else ""
    seed = f", seed {loads[0].seed}" if loads[0].arrivals == "poisson" else ""
    yield f"  arrivals {loads[0].arrivals}{seed}{ramp}; prompts {suite.cells[0].prompt}"
    if suite.body:
        yield f"  asked with {', '.join(f'{name} {value}' for name, value in suite.body.items())}"
    if loads[0].limits_s:
        yield f"  good: {Slo(loads[0].limits_s)}"
    yield _table(_HEAD, map(_row, suite.cells))
    for cell in suite.cells:
        yield from _turn_lines(cell)
    if suite.sustained is not None:
        yield f"  {sustained_text(suite.sustained)}"


def sustained_text(found: SustainedRate) -> str:
    wanted = f"{found.wanted_share:.0%} of requests within the limits"
    if found.rate_per_s is None:
        return f"no rate that was tried kept {wanted}"
    held = f"{found.held} of {found.requests}"
    beyond = (
        f"{found.fails_at_per_s:.4g}/s did not"
        if found.fails_at_per_s is not None
        else "no higher one was tried"
    )
    return f"highest rate with {wanted}: {found.rate_per_s:.4g}/s ({held}); {beyond}"


def _row(cell: Cell) -> tuple[str, ...]:
    load, waits = cell.load, cell.latency
    assert load is not None  # noqa: S101 - cells of a load have one
    return (
        f"{load.rate_per_s:.4g}",
        f"{load.completed_per_s:.3f}",
        f"{load.goodput_per_s:.3f}" if load.goodput_per_s is not None else "-",
        f"{load.held}/{load.requests}" if load.limits_s else "-",
        _at(waits.ttft_s, "p50"),
        _at(waits.ttft_s, "p95"),
        _at(waits.gap_s, "p99"),
        _at(waits.end_to_end_s, "p95"),
        f"{load.completion_tok_s:.1f}",
        str(load.most_in_flight),
        str(load.failures),
    )


def _turn_lines(cell: Cell) -> Iterator[Block]:
    load = cell.load
    if load is None or not load.turns:
        return
    yield f"  by turn, at {load.rate_per_s:.4g} conversations a second:"
    turns = ("", *(str(item.turn) for item in load.turns))
    rows = [("prompt tokens", *(_count(item.prompt_tokens) for item in load.turns))]
    if any(item.cached_tokens is not None for item in load.turns):
        rows.append(("of them cached", *(_count(item.cached_tokens) for item in load.turns)))
    rows.append(("TTFT p50", *(_at(item.ttft_s, "p50") for item in load.turns)))
    rows.append(("TTFT p95", *(_at(item.ttft_s, "p95") for item in load.turns)))
    yield _table(turns, rows)
    server = cell.server
    if server is not None and server.prefix_queries and server.prefix_hits is not None:
        share = server.prefix_hits / server.prefix_queries
        yield (
            f"  prefix cache: {share:.1%} of {server.prefix_queries:,} prompt tokens were in it "
            "(the server's counters, ramp and other clients included)"
        )
    if load.unsent:
        yield f"  turns not sent, because one before had failed: {load.unsent}"


def _count(value: float | None) -> str:
    return f"{value:.0f}" if value is not None else "-"


def _at(found: Quantiles | None, name: str) -> str:
    return f"{getattr(found, name):.3f}" if found is not None else "-"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> TextTable:
    columns = tuple(TextColumn(title, Fill.FIGURE) for title in titles)
    return TextTable(columns, tuple(row_of(*row) for row in rows), indent=2)
