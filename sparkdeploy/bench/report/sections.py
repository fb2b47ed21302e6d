"""The sections of the page: speed by prompt, and figures over streams, context, rate, drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.figures import value_of
from sparkdeploy.bench.files import shipped
from sparkdeploy.bench.report.shown import (
    LOAD,
    NOTHING,
    Bar,
    Line,
    Plot,
    Section,
    across,
    alike,
    in_thousands,
    with_names,
)
from sparkdeploy.bench.tables import (
    figure,
    limits_text,
    percent,
    prompt_title,
    sustained_text,
    with_interval,
)
from sparkdeploy.bench.watch import all_drafted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.bench.record import Cell, SuiteResult
    from sparkdeploy.bench.report.shown import Groups, ShownRun
    from sparkdeploy.server.metrics import Speculation

    CellsOfRuns = Sequence[tuple[ShownRun, Sequence[Cell]]]

TEXTS = "report/sections.yaml"
SPEEDS = {"five": "end_to_end_tok_s", "decode": "stream_decode_tok_s"}


def speed_section(
    runs: Sequence[ShownRun], published: Sequence[Mapping[str, Any]], suite: str
) -> Section | None:
    """Return the speed of one request by prompt class, and what others published of the recipes."""
    metric = SPEEDS[suite]
    by_run = [
        {it.prompt: it for it in shown.cells(suite) if it.concurrency == 1 and value_of(it, metric)}
        for shown in runs
    ]
    if not any(by_run):
        return None
    recipes = [shown.recipe for shown in runs]
    beside = [it for it in published if it["suite"] == suite and it["recipe"] in recipes]
    measured = (value_of(cell, metric) or 0.0 for cells in by_run for cell in cells.values())
    reported = (value for item in beside for value in item["prompts"].values())
    largest = max((*measured, *reported))

    def bar(cell: Cell) -> Bar:
        summary = cell.statistics[metric]
        return Bar(with_interval(summary), 100 * summary.mean / largest)

    rows = []
    for prompt in dict.fromkeys(name for cells in by_run for name in cells):
        own = [{it: cells[it] for it in cells if it == prompt} for cells in by_run]
        rows += across(own, prompt_title, bar)
        for item in (item for item in beside if prompt in item["prompts"]):
            value = item["prompts"][prompt]
            other = Bar(figure(value), 100 * value / largest, is_published=True)
            cells = (other if recipe == item["recipe"] else NOTHING for recipe in recipes)
            title = f"{prompt_title(prompt)}, as published ({item['label']})"
            rows.append((title, tuple(cells)))
    groups = (
        ("tok/s: mean ± 95 % interval", rows),
        ("requests that failed", across(by_run, prompt_title, _failed)),
    )
    notes = (f"{it['label']}: {source_of(it)}." for it in beside if it["prompts"])
    return Section(suite, "class", runs, groups, notes=tuple(dict.fromkeys(notes)))


def source_of(published: Mapping[str, Any]) -> str:
    return "; ".join(published[name] for name in ("method", "hardware", "source"))


def rows_of(section: str) -> dict[str, Callable[[Cell], str]]:
    """Return what the table of a section says of a cell, by the rows' titles."""
    return {title: ROWS[name] for name, title in shipped(TEXTS)[section]["rows"].items()}


def _section(
    name: str,
    cells_of_runs: CellsOfRuns,
    x: tuple[str, Callable[[Cell], float], Callable[[float], str]],
    drawn: Sequence[tuple[str, str, Callable[[Cell], float | None]]],
    *,
    groups: Groups = (),
    notes: Iterable[str] = (),
) -> Section | None:
    """Return figures over one condition of the cells; None where nothing can be drawn.

    `x` is the condition's title, its value and how that is written; `drawn` has title, unit and
    value of each plot.
    """
    x_title, at, head = x
    plots = tuple(
        Plot(title, x_title, unit, lines)
        for title, unit, read in drawn
        if (lines := tuple(_lines(cells_of_runs, at, read)))
    )
    if not plots:
        return None
    shown = [(run, cells) for run, cells in cells_of_runs if cells]
    by_run = [{at(cell): cell for cell in cells} for _, cells in shown]
    rows = ((title, across(by_run, head, text)) for title, text in rows_of(name).items())
    runs = [run for run, _ in shown]
    return Section(name, x_title, runs, (*rows, *groups), plots, tuple(notes))


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
    drawn = (("All requests together", "tok/s, decoding", _mean("decode_tok_s")), DRAWN_TTFT)
    x = ("requests at once", lambda cell: cell.concurrency, "{:g} at once".format)
    return _section("concurrency", swept, x, drawn, notes=notes)


def context_section(runs: Sequence[ShownRun]) -> Section | None:
    alone = (
        [it for it in shown.cells("sweep") if it.concurrency == 1 and it.context_tokens]
        for shown in runs
    )
    cells = (sorted(own, key=_context) for own in alone)
    x = ("tokens of context", _context, in_thousands)
    drawn = (("Decode speed", "tok/s", _mean("stream_decode_tok_s")), DRAWN_TTFT)
    return _section("context", list(zip(runs, cells, strict=True)), x, drawn)


def _at_shortest_context(shown: ShownRun) -> list[Cell]:
    cells = shown.cells("sweep")
    shortest = min(map(_context, cells), default=0)
    at_shortest = (cell for cell in cells if _context(cell) == shortest)
    return sorted(at_shortest, key=lambda cell: cell.concurrency)


def _context(cell: Cell) -> int:
    return cell.context_tokens or 0


def acceptance_section(runs: Sequence[ShownRun]) -> Section | None:
    """Return how far a drafter's guesses reach: accepted drafts by position."""
    drafting = {shown.name: (shown, cells) for shown in runs if (cells := _drafting(shown))}
    if not drafting:
        return None
    # Each cell is weighted by its steps.
    summed = (all_drafted(cells.values()) for _, cells in drafting.values())
    shares = [it.acceptance_per_position if it else () for it in summed]
    positions = [dict(enumerate(own, 1)) for own in shares]
    by_run = [cells for _, cells in drafting.values()]
    groups = (
        (
            "% taken, over all prompts",
            across(positions, "position {}".format, lambda it: Bar(figure(100 * it), 100 * it)),
        ),
        ("tokens a step", across(by_run, str, lambda it: figure(it.tokens_a_step, 2))),
        ("% of drafts taken", across(by_run, str, lambda it: percent(it.acceptance))),
    )
    return Section("acceptance", "condition", [shown for shown, _ in drafting.values()], groups)


def _drafting(shown: ShownRun) -> dict[str, Speculation]:
    """A sweep's prompts are made to fill a context; they count only where there are no others."""
    for cells in ((*shown.cells("five"), *shown.cells("decode")), shown.cells("sweep")):
        found = {_condition(it): it.server.drafted for it in cells if it.server}
        if known := {name: it for name, it in found.items() if it is not None and it.drafts}:
            return known
    return {}


def _condition(cell: Cell) -> str:
    context = f", {cell.context_tokens:,} tokens" if cell.context_tokens else ""
    streams = f", {cell.concurrency} at once" if cell.concurrency > 1 else ""
    return f"{prompt_title(cell.prompt)}{context}{streams}"


def _waits(
    kind: str, factor: float = 1.0, digits: int = 2, names: Sequence[str] = ("p50", "p95")
) -> Callable[[Cell], str]:
    """Return what writes quantiles of a cell's `kind` of waiting."""

    def text(cell: Cell) -> str:
        found = getattr(cell.latency, kind)
        if found is None:
            return NOTHING
        return " / ".join(figure(getattr(found, name) * factor, digits) for name in names)

    return text


def median_ttft_s(cell: Cell) -> float | None:
    return cell.latency.ttft_s.p50 if cell.latency.ttft_s is not None else None


def _mean(metric: str) -> Callable[[Cell], float | None]:
    return lambda cell: value_of(cell, metric)


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


DRAWN_TTFT = ("Time to first token", "s, median", median_ttft_s)


def load_section(runs: Sequence[ShownRun]) -> Section | None:
    """Show the runs whose load was asked alike; a note names the others."""
    loaded = alike(runs)
    limits_s = loaded[0][1].loads[0].limits_s if loaded else {}
    good = ("Requests done", "a second", _mean("completed_per_s"))
    if limits_s:
        unit = f"requests a second within {limits_text(limits_s)}"
        good = ("Goodput", unit, _mean("goodput_per_s"))
    # A search comes to rates of many digits.
    x = ("requests a second, as they come", _rate, "{:g}/s".format)
    rated = [(shown, [cell for cell in suite.cells if cell.load]) for shown, suite in loaded]
    return _section("load", rated, x, (DRAWN_TTFT, good), notes=_load_notes(runs, loaded))


def _rate(cell: Cell) -> float:
    return float(f"{cell.load.rate_per_s:.3g}") if cell.load else 0.0


def agents_section(runs: Sequence[ShownRun]) -> Section | None:
    """Show an agent's turns, of as many conversations at once as there were at the most."""
    most = max((it.concurrency for shown in runs for it in shown.cells("agents")), default=0)
    talks = [
        (shown, [it for it in shown.cells("agents") if it.concurrency == most]) for shown in runs
    ]
    x = (f"turn, of {most} at once", _turn, "turn {:g}".format)
    alone = [
        {_turn(it): it for it in shown.cells("agents") if it.concurrency == 1 < most}
        for shown in runs
    ]
    ttft = across(alone, "turn {:g}".format, ROWS["ttft"])
    groups = [("time to first token of one alone, s: median / 95th percentile", ttft)]
    drawn = (DRAWN_TTFT, ("Decode speed of each", "tok/s", _mean("stream_decode_tok_s")))
    return _section("agents", talks, x, drawn, groups=groups)


def _turn(cell: Cell) -> float:
    return float(cell.prompt.removeprefix("turn "))


def _mean_of(cell: Cell, field: str) -> float | None:
    """Return a mean over the requests that succeeded; None where one does not say it."""
    found = [getattr(it, field) for it in cell.samples if it.round and it.failure is None]
    return None if not found or None in found else sum(found) / len(found)


def _cached(cell: Cell) -> str:
    cached, prompt = _mean_of(cell, "cached_tokens"), _mean_of(cell, "prompt_tokens")
    return figure(100 * cached / prompt, 0) if cached is not None and prompt else NOTHING


def _load_notes(
    runs: Sequence[ShownRun], loaded: Sequence[tuple[ShownRun, SuiteResult]]
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
        if other.load is not None and other.name not in names:
            yield (
                f"{other.name}: its {LOAD} was asked in another way (prompts or limits) and is not "
                f"shown: `sparkdeploy bench show {other.run.run_id}`."
            )


ROWS: Mapping[str, Callable[[Any], str]] = {
    "ttft": _waits("ttft_s"),
    "tpot": _waits("tpot_s", 1000.0, 1),
    "gap_p99": _waits("gap_s", 1000.0, 0, ("p99",)),
    "decode": _summary("decode_tok_s"),
    "stream_decode": _summary("stream_decode_tok_s"),
    "prefill": _prefill,
    "failed": _failed,
    "kv_cache": _cache_peak,
    "within": lambda cell: (
        f"{cell.load.held} of {cell.load.requests}, {figure(cell.load.goodput_per_s, 2)}"
        if cell.load.limits_s
        else NOTHING
    ),
    "done": lambda cell: (
        f"{figure(cell.load.completed_per_s, 2)}, {figure(cell.load.completion_tok_s)}"
    ),
    "at_once": lambda cell: figure(cell.load.most_at_once, 0),
    "prompt": lambda cell: figure(_mean_of(cell, "prompt_tokens"), 0),
    "cached": _cached,
}
"""What a table says of a cell or a cell's load; sections.yaml has the titles."""
