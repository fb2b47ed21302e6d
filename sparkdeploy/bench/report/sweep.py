"""Latency and throughput over concurrency and over context: the suite `sweep`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.bench.report.chart import (
    Line,
    LineChart,
    Point,
    bounds,
    condition,
    failed,
    figure,
    heading_of,
    plottable,
    said_once,
    section_of,
    with_interval,
)
from sparkdeploy.bench.report.table import NOTHING, Table, across, run_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.bench.record import Cell
    from sparkdeploy.bench.report.chart import Section, ShownRun

    Swept = Sequence[tuple[ShownRun, Sequence[Cell]]]
    Read = Callable[[Cell, float], Point | None]

MILLISECONDS = 1000.0
STREAMS, CONTEXT = "requests at once", "tokens of context"
TO_P95, INTERVAL = "median to 95th percentile", "95 % interval"


def concurrency_section(runs: Sequence[ShownRun]) -> Section | None:
    swept = [(shown, _at_shortest_context(shown)) for shown in runs]
    charts = (
        _chart(swept, STREAMS, "Time to first token", f"s, {TO_P95}", _ttft),
        _chart(swept, STREAMS, "Time per output token", f"ms, {TO_P95}", _tpot),
        _chart(swept, STREAMS, "All requests together", f"tok/s, decoding, {INTERVAL}", _speed),
    )
    suites = [(shown.name, shown.run.suite("sweep")) for shown in runs]
    told = said_once((name, f"{note}.") for name, suite in suites if suite for note in suite.notes)
    notes = (*_unequal_contexts(swept), *told)
    return _section("concurrency", swept, charts, notes)


def context_section(runs: Sequence[ShownRun]) -> Section | None:
    swept = [(shown, _alone(shown)) for shown in runs]
    charts = (
        _chart(swept, CONTEXT, "Decode speed", f"tok/s, {INTERVAL}", _stream_speed),
        _chart(swept, CONTEXT, "Time to first token", f"s, {TO_P95}", _ttft),
    )
    return _section("context", swept, charts)


def _section(
    name: str, swept: Swept, charts: Sequence[LineChart], notes: Iterable[str] = ()
) -> Section | None:
    drawn = tuple(chart for chart in charts if chart.lines)
    if not drawn:
        return None
    seen = [(shown, cells) for shown, cells in swept if cells]
    is_context = name == "context"
    told = [{int(_x(cell, charts[0].x_title)): cell for cell in cells} for _, cells in seen]
    say = CONTEXT_FIGURES if is_context else CONCURRENCY_FIGURES
    head: Callable[[int], str] = condition if is_context else "{:d} at once".format
    groups = (across(title, told, head, read) for title, read in say.items())
    columns = run_columns(shown for shown, _ in seen)
    table = Table(heading_of(name), "condition", columns, tuple(groups))
    return section_of(name, drawn, table, notes)


def _at_shortest_context(shown: ShownRun) -> list[Cell]:
    cells = _cells(shown)
    shortest = min((cell.context_tokens or 0 for cell in cells), default=0)
    found = (cell for cell in cells if (cell.context_tokens or 0) == shortest)
    return sorted(found, key=lambda cell: cell.concurrency)


def _alone(shown: ShownRun) -> list[Cell]:
    found = (cell for cell in _cells(shown) if cell.concurrency == 1 and cell.context_tokens)
    return sorted(found, key=lambda cell: cell.context_tokens or 0)


def _cells(shown: ShownRun) -> list[Cell]:
    """Return the cells whose conditions have a place on a logarithmic axis."""
    return [
        cell
        for cell in shown.cells("sweep")
        if all(
            condition is None or (condition > 0 and plottable(condition))
            for condition in (cell.concurrency, cell.context_tokens)
        )
    ]


def _chart(swept: Swept, x_title: str, title: str, unit: str, read: Read) -> LineChart:
    """Draw every cell of which `read` makes a point; there may be none."""
    lines = []
    for shown, cells in swept:
        points = tuple(point for cell in cells if (point := read(cell, _x(cell, x_title))))
        if points:
            lines.append(Line(shown.name, points, shown.series))
    return LineChart(title, x_title, unit, tuple(lines))


def _x(cell: Cell, title: str) -> float:
    return float(cell.concurrency if title == STREAMS else cell.context_tokens or 0)


def _waiting(cell: Cell, x: float, *, kind: str, factor: float = 1.0) -> Point | None:
    found = getattr(cell.latency, kind)
    if found is None or not (plottable(found.p50 * factor) and plottable(found.p95 * factor)):
        return None
    return Point(x, found.p50 * factor, found.p50 * factor, found.p95 * factor)


_ttft = partial(_waiting, kind="ttft_s")
_tpot = partial(_waiting, kind="tpot_s", factor=MILLISECONDS)


def _speed(cell: Cell, x: float, *, metric: str = "decode_tok_s") -> Point | None:
    summary = cell.statistics.get(metric)
    if summary is None or not plottable(summary.mean):
        return None
    return Point(x, summary.mean, *bounds(summary))


_stream_speed = partial(_speed, metric="stream_decode_tok_s")


def _waits(cell: Cell, *, kind: str, factor: float, digits: int) -> str:
    found = getattr(cell.latency, kind)
    if found is None:
        return NOTHING
    ends = [figure(value * factor, digits) for value in (found.p50, found.p95)]
    return " / ".join(ends) if set(ends) != {NOTHING} else NOTHING


def _summed(cell: Cell, *, metric: str) -> str:
    return with_interval(cell.statistics.get(metric))


def _cache_peak(cell: Cell) -> str:
    peak = cell.server.kv_usage_peak if cell.server is not None else None
    return f"{peak:.0%}" if peak is not None and plottable(peak) else NOTHING


def _prefill(cell: Cell) -> str:
    ttft = cell.latency.ttft_s
    if ttft is None or ttft.p50 <= 0 or not cell.context_tokens:
        return NOTHING
    return figure(cell.context_tokens / ttft.p50, 0)


CONCURRENCY_FIGURES: Mapping[str, Callable[[Cell], str]] = {
    "time to first token, s: median / 95th percentile": partial(
        _waits, kind="ttft_s", factor=1.0, digits=2
    ),
    "time per output token, ms: median / 95th percentile": partial(
        _waits, kind="tpot_s", factor=MILLISECONDS, digits=1
    ),
    "all together, tok/s: mean ± 95 % interval": partial(_summed, metric="decode_tok_s"),
    "each, tok/s: mean ± 95 % interval": partial(_summed, metric="stream_decode_tok_s"),
    "requests that failed": failed,
    "KV cache in use at the most": _cache_peak,
}
CONTEXT_FIGURES: Mapping[str, Callable[[Cell], str]] = {
    "decode, tok/s: mean ± 95 % interval": partial(_summed, metric="stream_decode_tok_s"),
    "time to first token, s: median / 95th percentile": partial(
        _waits, kind="ttft_s", factor=1.0, digits=2
    ),
    "prefill, tok/s": _prefill,
    "requests that failed": failed,
}


def _unequal_contexts(swept: Swept) -> Iterator[str]:
    """Prompts of other lengths take another time: that must not look like the runs' doing."""
    told = {shown.name: cells[0].context_tokens or 0 for shown, cells in swept if cells}
    if len(set(told.values())) > 1:
        words = "; ".join(f"{name}: {tokens:,} tokens" for name, tokens in told.items())
        yield f"The context is not the same in all runs: {words}."
