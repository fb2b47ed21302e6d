"""Latency and goodput over the rate at which requests, or conversations, come: the suite `load`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.bench.load.limits import Slo
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.load.tables import sustained_text
from sparkdeploy.bench.report.chart import (
    LARGEST,
    LOAD,
    SMALLEST,
    Line,
    LineChart,
    Point,
    Scale,
    figure,
    heading_of,
    load_in,
    plottable,
    rate_of,
    said_once,
    section_of,
)
from sparkdeploy.bench.report.load_decisions import COUNTED, alike, asked_of, common_rate
from sparkdeploy.bench.report.table import NOTHING, RowGroup, Table, across, run_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sparkdeploy.bench.load.record import LoadResult, TurnResult
    from sparkdeploy.bench.quantiles import Quantiles
    from sparkdeploy.bench.record import Cell, SuiteResult
    from sparkdeploy.bench.report.chart import Section, ShownRun

    Loaded = Sequence[tuple[ShownRun, SuiteResult]]
    Read = Callable[[Cell], Point | None]

SECTIONS = {Asking.OPEN_LOOP: "load", Asking.CONVERSATIONS: "conversations"}
TO_P95 = "median to 95th percentile"
MILLISECONDS = 1000.0
MOST_TURNS = 64


def load_section(runs: Sequence[ShownRun], asking: Asking) -> Section | None:
    """Show the runs whose load was asked alike; a note names the others."""
    loaded = alike(runs, asking)
    asked = asked_of(loaded[0][1]) if loaded else None
    limits_s = dict(asked.limits_s) if asked is not None else {}
    x_title = f"{COUNTED[asking]} a second, as they come"
    charts = [
        _chart(loaded, x_title, "Time to first token", f"s, {TO_P95}", _first_token),
        _chart(loaded, x_title, *_done(limits_s)),
        _chart(loaded, x_title, "All together", "tok/s", _tokens),
    ]
    if asking is Asking.CONVERSATIONS:
        charts[2:] = _turn_charts(loaded)
    drawn = tuple(chart for chart in charts if chart.lines)
    if not drawn:
        return None
    table = _table(loaded, asking)
    return section_of(SECTIONS[asking], drawn, table, _notes(runs, loaded, asking))


def _cells(suite: SuiteResult) -> list[Cell]:
    """Return the cells whose rate has a place on a logarithmic axis, ascending."""
    found = [cell for cell in suite.cells if SMALLEST <= rate_of(cell) <= LARGEST]
    return sorted(found, key=rate_of)


def _rate(cell: Cell) -> float:
    """A rate that a search came to has many digits."""
    return float(f"{rate_of(cell):.3g}")


def _chart(loaded: Loaded, x_title: str, title: str, unit: str, read: Read) -> LineChart:
    lines = []
    for shown, suite in loaded:
        points = tuple(point for cell in _cells(suite) if (point := read(cell)) is not None)
        if points:
            lines.append(Line(shown.name, points, shown.series))
    return LineChart(title, x_title, unit, tuple(lines))


def _first_token(cell: Cell) -> Point | None:
    return _waited(_rate(cell), cell.latency.ttft_s)


def _waited(x: float, found: Quantiles | None) -> Point | None:
    if found is None or not (plottable(found.p50) and plottable(found.p95)):
        return None
    return Point(x, found.p50, found.p50, found.p95)


def _done(limits_s: Mapping[str, float]) -> tuple[str, str, Read]:
    if limits_s:
        read = partial(_point, of_load=lambda load: load.goodput_per_s)
        return "Goodput", f"requests a second within {Slo(limits_s)}", read
    read = partial(_point, of_load=lambda load: load.completed_per_s)
    return "Requests done", "a second", read


def _point(cell: Cell, of_load: Callable[[LoadResult], float | None]) -> Point | None:
    value = of_load(cell.load) if cell.load is not None else None
    return Point(_rate(cell), value) if value is not None and plottable(value) else None


_tokens = partial(_point, of_load=lambda load: load.completion_tok_s)


def _turn_charts(loaded: Loaded) -> list[LineChart]:
    """Return the wait by turn, at the highest rate that all have."""
    rate = common_rate([suite for _, suite in loaded])
    lines = []
    for shown, suite in loaded:
        told = (_waited(turn.turn, turn.ttft_s) for turn in _turns(suite, rate))
        points = tuple(point for point in told if point is not None)
        if points:
            lines.append(Line(shown.name, points, shown.series))
    title = f"Time to first token by turn, at {rate:.3g}/s" if rate is not None else ""
    return [LineChart(title, "turn", f"s, {TO_P95}", tuple(lines), Scale.LINEAR)]


def _turns(suite: SuiteResult, rate: float | None) -> list[TurnResult]:
    cell = next((cell for cell in suite.cells if rate_of(cell) == rate), None)
    turns = cell.load.turns if cell is not None and cell.load is not None else ()
    return [turn for turn in turns if 0 < turn.turn <= MOST_TURNS]


def _table(loaded: Loaded, asking: Asking) -> Table:
    told = [{_rate(cell): cell for cell in _cells(suite)} for _, suite in loaded]
    groups = [across(title, told, "{:g}/s".format, say) for title, say in FIGURES.items()]
    if asking is Asking.CONVERSATIONS:
        groups += _turn_groups(loaded)
    heading = heading_of(SECTIONS[asking])
    columns = run_columns(shown for shown, _ in loaded)
    return Table(f"{heading} ({asking})", "rate asked", columns, tuple(groups))


def _turn_groups(loaded: Loaded) -> Iterator[RowGroup]:
    rate = common_rate([suite for _, suite in loaded])
    told = [{turn.turn: turn for turn in _turns(suite, rate)} for _, suite in loaded]
    at = f"at {rate:.3g}/s" if rate is not None else ""
    yield across(f"prompt tokens, {at}", told, "turn {}".format, _prompt)
    yield across(f"of them in the prefix cache, %, {at}", told, "turn {}".format, _cached)


def _prompt(turn: TurnResult) -> str:
    return figure(turn.prompt_tokens, 0)


def _cached(turn: TurnResult) -> str:
    if turn.cached_tokens is None or not turn.prompt_tokens:
        return NOTHING
    return figure(100 * turn.cached_tokens / turn.prompt_tokens, 0)


def _ends(cell: Cell, *, kind: str, names: tuple[str, ...], factor: float, digits: int) -> str:
    found = getattr(cell.latency, kind)
    if found is None:
        return NOTHING
    said = [figure(getattr(found, name) * factor, digits) for name in names]
    return " / ".join(said) if set(said) != {NOTHING} else NOTHING


def _of_load(cell: Cell, say: Callable[[LoadResult], str]) -> str:
    return say(cell.load) if cell.load is not None else NOTHING


def _held(load: LoadResult) -> str:
    good = figure(load.goodput_per_s, 2)
    return f"{load.held} of {load.requests}, {good}" if load.limits_s else NOTHING


def _completed(load: LoadResult) -> str:
    return f"{figure(load.completed_per_s, 2)}, {figure(load.completion_tok_s)}"


FIGURES: Mapping[str, Callable[[Cell], str]] = {
    "time to first token, s: median / 95th percentile": partial(
        _ends, kind="ttft_s", names=("p50", "p95"), factor=1.0, digits=2
    ),
    "longest gaps, ms: 99th percentile": partial(
        _ends, kind="gap_s", names=("p99",), factor=MILLISECONDS, digits=0
    ),
    "requests within the limits, and how many a second": partial(_of_load, say=_held),
    "done a second, and their tok/s": partial(_of_load, say=_completed),
    "at once at the most": partial(_of_load, say=lambda it: str(it.most_in_flight)),
    "requests that failed": partial(
        _of_load, say=lambda it: str(it.failures) if it.failures else NOTHING
    ),
}


def _notes(runs: Sequence[ShownRun], loaded: Loaded, asking: Asking) -> Iterator[str]:
    for shown, suite in loaded:
        if suite.sustained is not None:
            yield f"{shown.name}: {sustained_text(suite.sustained)}."
    yield from said_once((it.name, f"{note}.") for it, suite in loaded for note in suite.notes)
    for shown, suite in loaded:
        if load_in(shown.run, asking) is None:
            run = next(run for run in shown.others if suite in run.suites)
            yield f"{shown.name}: from the record {run.run_id}."
    shown_here = [shown for shown, _ in loaded]
    for other in runs:
        if other.load(asking) is not None and other not in shown_here:
            yield (
                f"{other.name}: its {LOAD} was asked in another way (prompts, arrivals, ramp or "
                f"limits) and is not shown: `sparkdeploy bench show {other.run.run_id}`."
            )
