"""Runs and comparisons as a person reads them on a terminal."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sparkdeploy.bench.compare import FigureDifference, RunComparison, verdict_of
from sparkdeploy.bench.figures import FIGURES, Estimate, mean_of
from sparkdeploy.bench.files import KeptRun, shipped
from sparkdeploy.bench.record import (
    Cell,
    LoadResult,
    Quantiles,
    Run,
    RunOrigin,
    SuiteResult,
    Summary,
    SustainedRate,
)
from sparkdeploy.terminal.tables import Block, Fill, TextColumn, TextTable, row_of

HEADLINE = "end_to_end_tok_s"
_SHOWN = {
    "five": ("end_to_end_tok_s", "decode_tok_s", "ttft_p50_s"),
    "decode": ("decode_tok_s", "end_to_end_tok_s", "ttft_p50_s"),
    "sweep": ("decode_tok_s", "stream_decode_tok_s", "ttft_p50_s"),
    "agents": ("ttft_p50_s", "ttft_p95_s", "stream_decode_tok_s"),
    "load": (
        *("completed_per_s", "goodput_per_s"),
        *("ttft_p50_s", "ttft_p95_s", "gap_p99_s", "stream_decode_tok_s"),
    ),
}


def prompt_title(name: str) -> str:
    return str(shipped("report/sections.yaml")["prompts"].get(name, name))


def percent(share: float | None) -> str:
    return figure(None if share is None else 100 * share)


def figure(value: float | None, digits: int = 1) -> str:
    return f"{value:,.{digits}f}" if value is not None else "-"


def change(share: float, digits: int = 0) -> str:
    """Return `+3%`, `-3%` or `0%`: what rounds to nothing has no sign."""
    text = f"{share:+.{digits}%}"
    return text if any(digit in text for digit in "123456789") else text[1:]


def with_interval(summary: Summary | None, digits: int = 1) -> str:
    """Return `49.2 ± 1.2`, or the mean alone where nothing more is known."""
    if summary is None or summary.high95 is None:
        return figure(summary.mean if summary is not None else None, digits)
    return f"{figure(summary.mean, digits)} ± {figure(summary.high95 - summary.mean, digits)}"


def list_lines(kept: Sequence[KeptRun]) -> Iterator[Block]:
    if not kept:
        yield "no runs are kept; `sparkdeploy bench` makes one"
        return
    rows = []
    for run in (item.run for item in kept):
        five = run.suite("five")
        tok_s = figure(mean_of(five.cells, HEADLINE)) if five is not None and five.cells else "-"
        rows.append(row_of(run.run_id, run.label, ", ".join(it.name for it in run.suites), tok_s))
    words = (TextColumn("label", Fill.WORDS), TextColumn("suites", Fill.WORDS))
    columns = (TextColumn("run"), *words, TextColumn("tok/s", Fill.FIGURE))
    yield TextTable(columns, tuple(rows))


def run_lines(run: Run) -> Iterator[Block]:
    yield f"{run.label}  {run.run_id}  {run.started_at}"
    yield from (f"  {name}: {value}" for name, value in origin_facts(run.origin))
    for suite in run.suites:
        yield ""
        yield from suite_lines(suite)


def suite_lines(suite: SuiteResult) -> Iterator[Block]:
    state = "" if suite.is_complete else ", not finished"
    rounds = f"{suite.rounds} round{'' if suite.rounds == 1 else 's'}"
    how = "requests on schedule" if suite.loads else rounds
    yield f"suite {suite.name}: {how}, temperature {suite.temperature:g}{state}"
    if suite.loads:
        yield from load_lines(suite)
    elif suite.cells:
        yield from _cell_table(suite)
    for tool in suite.tools if not suite.cells else ():
        yield f"  {tool.tool} {tool.version}"
        for name, value in tool.figures.items():
            title, digits = _shown_as(name)
            yield f"    {title:<24}{value:>10.{digits}f}"
    for note in suite.notes:
        yield f"  note: {note}"
    samples = (sample for cell in suite.cells for sample in cell.samples if sample.round)
    kinds = Counter(sample.failure.kind for sample in samples if sample.failure is not None)
    if failed := sum(cell.failures for cell in suite.cells):
        words = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        yield f"  {failed} requests failed and are in no figure: {words}"


def comparison_lines(comparison: RunComparison) -> Iterator[Block]:
    yield f"{comparison.other} against {comparison.base}"
    yield from _variation_lines(comparison)
    for suite, metric in ((suite, it) for suite, metrics in _SHOWN.items() for it in metrics):
        title, digits = _shown_as(metric)
        rows = [
            row_of(
                _condition(item),
                f"{item.base:.{digits}f}",
                f"-> {item.other:.{digits}f}",
                *_estimate(item.estimate),
            )
            for item in comparison.differences
            if (item.suite, item.metric) == (suite, metric)
        ]
        if rows:
            yield ""
            yield f"{suite}, {title}"
        rows += (
            row_of(item.prompt, "", "", *_estimate(item.estimate))
            for item in comparison.overall
            if (item.suite, item.metric) == (suite, metric)
        )
        figures = TextColumn("", Fill.FIGURE)
        columns = (TextColumn(), figures, TextColumn(), figures, TextColumn(), TextColumn())
        yield TextTable(columns, tuple(rows), 2)
    for note in comparison.notes:
        yield f"not compared: {note}"
    if comparison.changed:
        yield ""
        yield "what made the runs and is not the same:"
        for line in comparison.changed:
            yield f"  {line}" if len(line) <= 160 else f"  {line[:157]}..."


def _variation_lines(comparison: RunComparison) -> Iterator[str]:
    counts = len(comparison.other_runs), len(comparison.base_runs)
    runs = " against ".join(f"{count} run{'' if count == 1 else 's'}" for count in counts)
    if not comparison.variation_from:
        yield f"  {runs}; how much two runs of the same differ is not known on this machine:"
        yield "  `sparkdeploy bench --save LABEL` under a label that is there adds a run"
        return
    labels = ", ".join(comparison.variation_from)
    known = [item.deviation for item in comparison.overall if item.metric == HEADLINE]
    share = f" (+- {known[0]:.1%} of {HEADLINE})" if known and known[0] is not None else ""
    yield f"  {runs}; how much runs of the same differ is seen in the runs of {labels}{share}"


def _cell_table(suite: SuiteResult) -> Iterator[Block]:
    # A suite that only a later version knows has the same figures.
    metrics = _SHOWN.get(suite.name, _SHOWN["five"])
    titles = (*(FIGURES[name].title for name in metrics), "accepted")
    rows = [row_of(*_cell_row(cell, metrics)) for cell in suite.cells]
    if suite.name == "five" and len(suite.cells) > 1:
        rows.append(row_of("mean of all", f"{mean_of(suite.cells, HEADLINE):.2f}", "", "", ""))
    columns = (TextColumn(), *(TextColumn(title, Fill.FIGURE) for title in titles))
    yield TextTable(columns, tuple(rows), indent=2)
    if facts := ", ".join(f"{name} {span}" for name, span in machine_facts(suite.cells)):
        yield f"  machine: {facts}"


def _cell_row(cell: Cell, metrics: Sequence[str]) -> tuple[str, ...]:
    values = (with_interval(cell.statistics.get(it), FIGURES[it].digits) for it in metrics)
    drafted = cell.server.drafted if cell.server is not None else None
    accepted = drafted.acceptance_per_position if drafted is not None else ()
    return (_condition(cell), *values, " ".join(f"{value:.0%}" for value in accepted) or "-")


def machine_facts(cells: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    for name, attribute, unit in (
        ("SM clock", "sm_clock_mhz", "MHz"),
        ("temperature", "temperature_c", "°C"),
        ("power", "power_w", "W"),
    ):
        spans = [span for it in cells if (span := getattr(it.machine, attribute, None)) is not None]
        if spans:
            low, high = min(span.low for span in spans), max(span.high for span in spans)
            yield name, f"{figure(low, 0)} to {figure(high, 0)} {unit}"
    if (floor := free_gib(cells)) is not None:
        yield "least free memory", f"{figure(floor)} GiB"


def free_gib(cells: Iterable[Cell]) -> float | None:
    """Return the least memory that was free while these were measured."""
    floors = [it.machine.memory_floor_bytes for it in cells if it.machine]
    known = [floor for floor in floors if floor]
    return min(known) / 2**30 if known else None


def origin_facts(origin: RunOrigin) -> Iterator[tuple[str, str]]:
    recipe, weights = origin.recipe, origin.checkpoint
    engine, machine = origin.engine, origin.machine
    cache_tokens = engine.kv_cache_tokens if engine else None
    found = (
        ("recipe", f"{recipe.name} ({recipe.fingerprint[:12]})" if recipe else None),
        ("served as", f"{origin.model} at {origin.url}"),
        ("model", f"{weights.source} {(weights.revision or '')[:12]}" if weights else None),
        ("vLLM", engine.version if engine else None),
        ("attention", engine.attention_backend if engine else None),
        ("LM head", engine.lm_head if engine else None),
        ("FP8 layers", engine.fp8_layers if engine else None),
        ("KV cache", f"{cache_tokens:,} tokens" if cache_tokens else None),
        ("machine", machine.product if machine else None),
        ("architecture", machine.architecture if machine else None),
        ("GPU", machine.gpu if machine else None),
        ("driver", machine.driver if machine else None),
        ("kernel", machine.kernel if machine else None),
        ("image", ", ".join(image.reference for image in origin.images)),
    )
    yield from ((name, str(value)) for name, value in found if value not in {None, ""})


def _estimate(ratio: Estimate) -> tuple[str, str, str]:
    interval = ""
    if ratio.low is not None and ratio.high is not None:
        interval = f"({change(ratio.low - 1, 1)} to {change(ratio.high - 1, 1)})"
    return change((ratio.value or 1) - 1, 1), interval, str(verdict_of(ratio))


def _shown_as(name: str) -> tuple[str, int]:
    """Return a figure's title and decimals; a later version's may be unknown here."""
    known = FIGURES.get(name)
    return (known.title, known.digits) if known is not None else (name, 3)


def _condition(item: Cell | FigureDifference) -> str:
    name = item.prompt
    if item.context_tokens is not None:
        name = f"{item.concurrency} x {item.context_tokens} tokens"
    elif item.concurrency > 1:
        name += f", {item.concurrency} at once"
    return f"{name} {item.asked}".rstrip()


LOAD_COLUMNS: Mapping[str, Callable[[Cell, LoadResult], str]] = {
    "asked/s": lambda _, load: f"{load.rate_per_s:.4g}",
    "done/s": lambda _, load: figure(load.completed_per_s, 3),
    "good/s": lambda _, load: figure(load.goodput_per_s, 3),
    "held": lambda _, load: f"{load.held}/{load.requests}" if load.limits_s else "-",
    "TTFT p50": lambda cell, _: _at(cell.latency.ttft_s, "p50"),
    "p95": lambda cell, _: _at(cell.latency.ttft_s, "p95"),
    "gap p99": lambda cell, _: _at(cell.latency.gap_s, "p99"),
    "e2e p95": lambda cell, _: _at(cell.latency.end_to_end_s, "p95"),
    "tok/s": lambda _, load: figure(load.completion_tok_s),
    "at once": lambda _, load: figure(load.most_at_once, 0),
    "failed": lambda _, load: str(load.failures),
}


def load_lines(suite: SuiteResult) -> Iterator[Block]:
    if limits_s := suite.loads[0].limits_s:
        yield f"  good: {limits_text(limits_s)}"
    cells = ((cell, cell.load) for cell in suite.cells if cell.load)
    rows = ([text(*it) for text in LOAD_COLUMNS.values()] for it in cells)
    yield _figures_table(tuple(LOAD_COLUMNS), rows)
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


def limits_text(limits_s: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {span_text(limit)}" for name, limit in limits_s.items())


def span_text(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def _at(found: Quantiles | None, name: str) -> str:
    return figure(getattr(found, name, None), 3)


def _figures_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> TextTable:
    columns = tuple(TextColumn(title, Fill.FIGURE) for title in titles)
    return TextTable(columns, tuple(row_of(*row) for row in rows), indent=2)
