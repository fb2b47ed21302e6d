"""The sections of the page: speed by prompt, and figures over streams, context, rate, drafts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.bench.load.plan import Slo
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.report.shown import (
    LOAD,
    NOTHING,
    Bar,
    Line,
    Plot,
    Section,
    across,
    alike,
    common_rate,
    in_thousands,
    with_names,
)
from sparkdeploy.bench.tables import figure, sustained_text, title_of, with_interval
from sparkdeploy.bench.watch import together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.bench.load.record import LoadResult, Quantiles, TurnResult
    from sparkdeploy.bench.record import Cell, ServerDelta, SuiteResult
    from sparkdeploy.bench.report.page import Field, Published
    from sparkdeploy.bench.report.shown import Groups, Row, ShownRun

    CellsOfRuns = Sequence[tuple[ShownRun, Sequence[Cell]]]

SPEEDS = {"five": "end_to_end_tok_s", "decode": "stream_decode_tok_s"}


def speed_section(runs: Sequence[ShownRun], field: Field, suite: str) -> Section | None:
    """Return the speed of one request by prompt class, and what others published of the recipes."""
    metric = SPEEDS[suite]
    by_run = [
        {
            cell.prompt: cell
            for cell in shown.cells(suite)
            if cell.concurrency == 1 and metric in cell.statistics
        }
        for shown in runs
    ]
    prompts = dict.fromkeys(name for cells in by_run for name in cells)
    if not prompts:
        return None
    recipes = {shown.recipe for shown in runs}
    beside = [it for it in field.published if it.suite == suite and it.recipe in recipes]
    measured = (cell.statistics[metric].mean for cells in by_run for cell in cells.values())
    largest = max(*measured, *(value for item in beside for value in item.prompts.values()), 1e-9)
    rows: list[Row] = []
    for prompt in prompts:
        pairs = zip(runs, (cells.get(prompt) for cells in by_run), strict=True)
        rows.append(
            (title_of("prompts", prompt), tuple(_bar(*it, metric, largest) for it in pairs))
        )
        others = (item for item in beside if prompt in item.prompts)
        rows += (_published(runs, item, prompt, largest) for item in others)
    groups = (
        ("tok/s: mean ± 95 % interval", rows),
        ("requests that failed", across(by_run, partial(title_of, "prompts"), _failed)),
    )
    notes = (f"{it.label}: {it.method}; {it.hardware}; {it.source}." for it in beside if it.prompts)
    return Section(suite, "class", runs, groups, notes=tuple(dict.fromkeys(notes)))


def _bar(shown: ShownRun, cell: Cell | None, metric: str, largest: float) -> Bar | str:
    if cell is None:
        return NOTHING
    summary = cell.statistics[metric]
    return Bar(with_interval(summary), 100 * summary.mean / largest, shown.series)


def _published(runs: Sequence[ShownRun], item: Published, prompt: str, largest: float) -> Row:
    value = item.prompts[prompt]
    cells = (
        Bar(figure(value), 100 * value / largest, shown.series, is_published=True)
        if shown.recipe == item.recipe
        else NOTHING
        for shown in runs
    )
    return f"{title_of('prompts', prompt)}, as published ({item.label})", tuple(cells)


@dataclass(frozen=True, slots=True)
class Over:
    """Figures over one condition of the cells."""

    name: str
    x_title: str
    x: Callable[[Cell], float]
    head: Callable[[float], str]
    figures: Mapping[str, Callable[[Cell], str]]
    drawn: Sequence[tuple[str, str, Callable[[Cell], float | None]]]
    """Title, unit and value of each plot."""


def section_over(
    over: Over, cells_of_runs: CellsOfRuns, *, groups: Groups = (), notes: Iterable[str] = ()
) -> Section | None:
    """Return None where nothing can be drawn."""
    plots = tuple(
        Plot(title, over.x_title, unit, lines)
        for title, unit, read in over.drawn
        if (lines := tuple(_lines(cells_of_runs, over.x, read)))
    )
    if not plots:
        return None
    shown = [(run, cells) for run, cells in cells_of_runs if cells]
    by_run = [{over.x(cell): cell for cell in cells} for _, cells in shown]
    rows = ((title, across(by_run, over.head, text)) for title, text in over.figures.items())
    runs = [run for run, _ in shown]
    return Section(over.name, over.x_title, runs, (*rows, *groups), plots, tuple(notes))


def _lines(
    cells_of_runs: CellsOfRuns, x: Callable[[Cell], float], read: Callable[[Cell], float | None]
) -> Iterator[Line]:
    for shown, cells in cells_of_runs:
        values = ((x(cell), read(cell)) for cell in cells)
        points = tuple((at, value) for at, value in values if value is not None and at > 0)
        if points:
            yield Line(shown.name, shown.series, points)


def concurrency_section(runs: Sequence[ShownRun]) -> Section | None:
    swept = [(shown, _at_shortest_context(shown)) for shown in runs]
    contexts = {shown.name: _context(cells[0]) for shown, cells in swept if cells}
    notes = []
    if len(set(contexts.values())) > 1:
        # Prompts of other lengths take another time: that must not look like the runs' doing.
        words = "; ".join(f"{name}: {tokens:,} tokens" for name, tokens in contexts.items())
        notes.append(f"The context is not the same in all runs: {words}.")
    suites = [(shown.name, shown.run.suite("sweep")) for shown in runs]
    notes += with_names((name, f"{it}.") for name, suite in suites if suite for it in suite.notes)
    return section_over(CONCURRENCY, swept, notes=notes)


def context_section(runs: Sequence[ShownRun]) -> Section | None:
    alone = (
        [it for it in shown.cells("sweep") if it.concurrency == 1 and it.context_tokens]
        for shown in runs
    )
    cells = (sorted(own, key=_context) for own in alone)
    return section_over(CONTEXT, list(zip(runs, cells, strict=True)))


def _at_shortest_context(shown: ShownRun) -> list[Cell]:
    cells = shown.cells("sweep")
    shortest = min(map(_context, cells), default=0)
    at_shortest = (cell for cell in cells if _context(cell) == shortest)
    return sorted(at_shortest, key=lambda cell: cell.concurrency)


def _context(cell: Cell) -> int:
    return cell.context_tokens or 0


def acceptance_section(runs: Sequence[ShownRun]) -> Section | None:
    """Return how far a drafter's guesses reach: accepted drafts by position."""
    drafting = [(shown, cells) for shown in runs if (cells := _drafting(shown))]
    if not drafting:
        return None
    rows: dict[int, list[Bar | str]] = {}
    for at, (shown, cells) in enumerate(drafting):
        # Each cell is weighted by its steps.
        summed = together(delta for _, delta in cells)
        for position, share in enumerate(summed.acceptance_per_position if summed else (), 1):
            row = rows.setdefault(position, [NOTHING] * len(drafting))
            row[at] = Bar(figure(100 * share), 100 * share, shown.series)
    by_run = [{_condition(cell): delta for cell, delta in cells} for _, cells in drafting]
    taken: list[Row] = [(f"position {number}", tuple(cells)) for number, cells in rows.items()]
    a_step = across(by_run, str, lambda delta: figure(delta.mean_acceptance_length, 2))
    groups = (
        ("% taken, over all prompts", taken),
        ("tokens a step", a_step),
        ("% of drafts taken", across(by_run, str, lambda delta: _percent(delta.acceptance))),
    )
    return Section("acceptance", "condition", [shown for shown, _ in drafting], groups)


def _percent(share: float | None) -> str:
    return figure(100 * share) if share is not None else NOTHING


def _drafting(shown: ShownRun) -> list[tuple[Cell, ServerDelta]]:
    """A sweep's prompts are made to fill a context; they count only where there are no others."""
    for cells in ((*shown.cells("five"), *shown.cells("decode")), shown.cells("sweep")):
        if found := [(cell, cell.server) for cell in cells if cell.server and cell.server.drafts]:
            return found
    return []


def _condition(cell: Cell) -> str:
    name = title_of("prompts", cell.prompt)
    context = f", {cell.context_tokens:,} tokens" if cell.context_tokens else ""
    streams = f", {cell.concurrency} at once" if cell.concurrency > 1 else ""
    return f"{name}{context}{streams}"


def waits(
    found: Quantiles | None, factor: float, digits: int, names: Sequence[str] = ("p50", "p95")
) -> str:
    if found is None:
        return NOTHING
    return " / ".join(figure(getattr(found, name) * factor, digits) for name in names)


def median_ttft_s(cell: Cell) -> float | None:
    return cell.latency.ttft_s.p50 if cell.latency.ttft_s is not None else None


def _mean(metric: str) -> Callable[[Cell], float | None]:
    return lambda cell: cell.statistics[metric].mean if metric in cell.statistics else None


def _summary(metric: str) -> Callable[[Cell], str]:
    return lambda cell: with_interval(cell.statistics.get(metric))


def _cache_peak(cell: Cell) -> str:
    peak = cell.server.kv_usage_peak if cell.server is not None else None
    return f"{peak:.0%}" if peak is not None else NOTHING


def _prefill(cell: Cell) -> str:
    ttft_s = median_ttft_s(cell)
    return figure(_context(cell) / ttft_s, 0) if ttft_s and cell.context_tokens else NOTHING


def _failed(cell: Cell) -> str:
    """Return how many requests failed; a table without failures has no row of them."""
    return str(cell.failures) if cell.failures else NOTHING


TTFT = "time to first token, s: median / 95th percentile"
FAILED = "requests that failed"
CONCURRENCY = Over(
    name="concurrency",
    x_title="requests at once",
    x=lambda cell: cell.concurrency,
    head="{:g} at once".format,
    figures={
        TTFT: lambda cell: waits(cell.latency.ttft_s, 1.0, 2),
        "time per output token, ms: median / 95th percentile": lambda cell: waits(
            cell.latency.tpot_s, 1000.0, 1
        ),
        "all together, tok/s: mean ± 95 % interval": _summary("decode_tok_s"),
        "each, tok/s: mean ± 95 % interval": _summary("stream_decode_tok_s"),
        FAILED: _failed,
        "KV cache in use at the most": _cache_peak,
    },
    drawn=(
        ("All requests together", "tok/s, decoding", _mean("decode_tok_s")),
        ("Time to first token", "s, median", median_ttft_s),
    ),
)
CONTEXT = Over(
    name="context",
    x_title="tokens of context",
    x=_context,
    head=in_thousands,
    figures={
        "decode, tok/s: mean ± 95 % interval": _summary("stream_decode_tok_s"),
        TTFT: lambda cell: waits(cell.latency.ttft_s, 1.0, 2),
        "prefill, tok/s": _prefill,
        FAILED: _failed,
    },
    drawn=(
        ("Decode speed", "tok/s", _mean("stream_decode_tok_s")),
        ("Time to first token", "s, median", median_ttft_s),
    ),
)


def load_section(runs: Sequence[ShownRun], asking: Asking) -> Section | None:
    """Show the runs whose load was asked alike; a note names the others."""
    loaded = alike(runs, asking)
    limits_s = loaded[0][1].loads[0].limits_s if loaded else {}
    is_talk = asking is Asking.CONVERSATIONS
    good = ("Requests done", "a second", _of_load(lambda it: it.completed_per_s))
    if limits_s:
        unit = f"requests a second within {Slo(limits_s)}"
        good = ("Goodput", unit, _of_load(lambda it: it.goodput_per_s))
    over = Over(
        name="conversations" if is_talk else "load",
        x_title=f"{'conversations' if is_talk else 'requests'} a second, as they come",
        # A search comes to rates of many digits.
        x=lambda cell: float(f"{cell.load.rate_per_s:.3g}") if cell.load else 0.0,
        head="{:g}/s".format,
        figures=LOAD_FIGURES,
        drawn=(("Time to first token", "s, median", median_ttft_s), good),
    )
    rated = [(shown, [cell for cell in suite.cells if cell.load]) for shown, suite in loaded]
    groups = tuple(_turn_groups([suite for _, suite in loaded])) if is_talk else ()
    return section_over(over, rated, groups=groups, notes=_load_notes(runs, loaded, asking))


def _of_load(read: Callable[[LoadResult], float | None]) -> Callable[[Cell], float | None]:
    return lambda cell: read(cell.load) if cell.load is not None else None


def _turn_groups(suites: Sequence[SuiteResult]) -> Iterator[tuple[str, list[Row]]]:
    """Yield what each turn waits and finds in the prefix cache, at the highest common rate."""
    rate = common_rate(suites)
    loads = ([load for load in suite.loads if load.rate_per_s == rate] for suite in suites)
    by_run = [{turn.turn: turn for load in own for turn in load.turns} for own in loads]
    at = f"at {rate:.3g}/s" if rate is not None else ""
    for title, text in TURN_FIGURES.items():
        yield title.format(at), across(by_run, "turn {}".format, text)


def _cached(turn: TurnResult) -> str:
    if turn.cached_tokens is None or not turn.prompt_tokens:
        return NOTHING
    return figure(100 * turn.cached_tokens / turn.prompt_tokens, 0)


def _load_notes(
    runs: Sequence[ShownRun], loaded: Sequence[tuple[ShownRun, SuiteResult]], asking: Asking
) -> Iterator[str]:
    for shown, suite in loaded:
        if suite.sustained is not None:
            yield f"{shown.name}: {sustained_text(suite.sustained)}."
    yield from with_names((it.name, f"{note}.") for it, suite in loaded for note in suite.notes)
    for shown, suite in loaded:
        for run in shown.others:
            if suite in run.suites and suite not in shown.run.suites:
                yield f"{shown.name}: from the record {run.run_id}."
    names = [shown.name for shown, _ in loaded]
    for other in runs:
        if other.load(asking) is not None and other.name not in names:
            yield (
                f"{other.name}: its {LOAD} was asked in another way (prompts, arrivals, ramp or "
                f"limits) and is not shown: `sparkdeploy bench show {other.run.run_id}`."
            )


def _text(read: Callable[[LoadResult], str]) -> Callable[[Cell], str]:
    return lambda cell: read(cell.load) if cell.load is not None else NOTHING


LOAD_FIGURES = {
    TTFT: lambda cell: waits(cell.latency.ttft_s, 1.0, 2),
    "longest gaps, ms: 99th percentile": lambda cell: waits(
        cell.latency.gap_s, 1000.0, 0, ("p99",)
    ),
    "requests within the limits, and how many a second": _text(
        lambda it: (
            f"{it.held} of {it.requests}, {figure(it.goodput_per_s, 2)}" if it.limits_s else NOTHING
        )
    ),
    "done a second, and their tok/s": _text(
        lambda it: f"{figure(it.completed_per_s, 2)}, {figure(it.completion_tok_s)}"
    ),
    "at once at the most": _text(lambda it: str(it.most_in_flight)),
    FAILED: _text(lambda it: str(it.failures) if it.failures else NOTHING),
}
TURN_FIGURES: Mapping[str, Callable[[TurnResult], str]] = {
    "time to first token, s, {}: median / 95th percentile": lambda turn: waits(turn.ttft_s, 1.0, 2),
    "prompt tokens, {}": lambda turn: figure(turn.prompt_tokens, 0),
    "of them in the prefix cache, %, {}": _cached,
}
