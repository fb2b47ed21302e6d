"""Latency and throughput over concurrency and over context: the suite `sweep`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.bench.report.chart import (
    Line,
    LineChart,
    Point,
    bounds,
    figure,
    interval,
    plottable,
    section_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
        _chart(swept, STREAMS, "Time to first token", f"seconds, {TO_P95}", _ttft),
        _chart(swept, STREAMS, "Time per output token", f"milliseconds, {TO_P95}", _tpot),
        _chart(swept, STREAMS, "All requests together", f"tok/s, decoding, {INTERVAL}", _speed),
    )
    suites = [(shown.name, shown.run.suite("sweep")) for shown in runs]
    told = (f"{name}: {note}." for name, suite in suites if suite for note in suite.notes)
    notes = (*_unequal_contexts(swept), *told)
    return _section("concurrency", swept, charts, _concurrency_row, notes)


def context_section(runs: Sequence[ShownRun]) -> Section | None:
    swept = [(shown, _alone(shown)) for shown in runs]
    charts = (
        _chart(swept, CONTEXT, "Decode speed", f"tok/s, {INTERVAL}", _stream_speed),
        _chart(swept, CONTEXT, "Time to first token", f"seconds, {TO_P95}", _ttft),
    )
    return _section("context", swept, charts, _context_row)


def _section(
    name: str,
    swept: Swept,
    charts: Sequence[LineChart],
    row: Callable[[ShownRun, Cell], tuple[str, ...]],
    notes: Iterable[str] = (),
) -> Section | None:
    drawn = tuple(chart for chart in charts if chart.lines)
    rows = (row(shown, cell) for shown, cells in swept for cell in cells)
    return section_of(name, drawn, rows, notes) if drawn else None


def _at_shortest_context(shown: ShownRun) -> list[Cell]:
    cells = _cells(shown)
    shortest = min((cell.context_tokens or 0 for cell in cells), default=0)
    found = (cell for cell in cells if (cell.context_tokens or 0) == shortest)
    return sorted(found, key=lambda cell: cell.concurrency)


def _alone(shown: ShownRun) -> list[Cell]:
    found = (cell for cell in _cells(shown) if cell.concurrency == 1 and cell.context_tokens)
    return sorted(found, key=lambda cell: cell.context_tokens or 0)


def _cells(shown: ShownRun) -> list[Cell]:
    """Return the cells whose conditions have a place on a logarithmic axis; none at a depth."""
    return [
        cell
        for cell in shown.cells("sweep")
        if cell.depth_tokens is None
        and all(
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
    return LineChart(title, x_title, unit, tuple(lines), x_title == CONTEXT)


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


def _concurrency_row(shown: ShownRun, cell: Cell) -> tuple[str, ...]:
    ttft, tpot = cell.latency.ttft_s, cell.latency.tpot_s
    total, each = (cell.statistics.get(f"{name}decode_tok_s") for name in ("", "stream_"))
    peak = cell.server.kv_usage_peak if cell.server is not None else None
    return (
        shown.name,
        str(cell.concurrency),
        figure(ttft.p50 if ttft else None, 3),
        figure(ttft.p95 if ttft else None, 3),
        figure(tpot.p50 * MILLISECONDS if tpot else None),
        figure(tpot.p95 * MILLISECONDS if tpot else None),
        figure(total.mean if total else None),
        interval(total),
        figure(each.mean if each else None),
        str(cell.failures),
        f"{peak:.0%}" if peak is not None and plottable(peak) else "-",
    )


def _context_row(shown: ShownRun, cell: Cell) -> tuple[str, ...]:
    speed, ttft = cell.statistics.get("stream_decode_tok_s"), cell.latency.ttft_s
    prefill = None
    if ttft is not None and ttft.p50 > 0 and cell.context_tokens:
        prefill = cell.context_tokens / ttft.p50
    return (
        shown.name,
        f"{cell.context_tokens:,}",
        figure(speed.mean if speed else None),
        interval(speed),
        figure(ttft.p50 if ttft else None, 3),
        figure(prefill, 0),
        str(cell.failures),
    )


def _unequal_contexts(swept: Swept) -> Iterator[str]:
    """Prompts of other lengths take another time: that must not look like the runs' doing."""
    told = {shown.name: cells[0].context_tokens or 0 for shown, cells in swept if cells}
    if len(set(told.values())) > 1:
        words = "; ".join(f"{name}: {tokens:,} tokens" for name, tokens in told.items())
        yield f"The context is not the same in all runs: {words}."
