"""The page itself: HTML with its styles and pictures inside. It loads nothing and runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.bench.report import palette
from sparkdeploy.bench.report.acceptance import acceptance_section
from sparkdeploy.bench.report.bars import draw_bars
from sparkdeploy.bench.report.beside import published_section
from sparkdeploy.bench.report.chart import BarChart, plottable
from sparkdeploy.bench.report.lines import draw_lines
from sparkdeploy.bench.report.section import Shown, figure
from sparkdeploy.bench.report.speed import decode_section, five_section
from sparkdeploy.bench.report.sweep import concurrency_section, context_section
from sparkdeploy.image.templates import render_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.bench.record import Run
    from sparkdeploy.bench.report.chart import LineChart
    from sparkdeploy.bench.report.published import Field
    from sparkdeploy.bench.report.section import Section

WIDE, NARROW = 920.0, 340.0
"""Every chart is drawn twice: scaled down to a phone, the letters of a wide one are too small."""
TEMPLATE = "report.html.j2"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chart as SVG, for wide and for narrow screens."""

    title: str
    wide: str
    narrow: str


def report_page(runs: Sequence[Run], field: Field, *, made_at: str, version: str) -> str:
    """Return the HTML of a report about one run or more."""
    shown = named(runs)
    sections = tuple(_sections(shown, field))
    facts = [dict(_facts(item.run)) for item in shown]
    shared = {name: value for name, value in facts[0].items() if _in_all(name, value, facts)}
    return render_page(
        Path(__file__).parent,
        TEMPLATE,
        title=" and ".join(item.name for item in shown) if len(shown) < 3 else f"{len(shown)} runs",
        shared=shared,
        runs=[
            (item, palette.series_class(item.series), _without(own, shared))
            for item, own in zip(shown, facts, strict=True)
        ],
        sections=[(section, tuple(map(_draw, section.charts))) for section in sections],
        warnings=tuple(_warnings(shown)),
        made_at=made_at,
        version=version,
        light=palette.style(0),
        dark=palette.style(1),
        rules=palette.series_rules(),
    )


def named(runs: Sequence[Run]) -> tuple[Shown, ...]:
    """Give every run a name of its own: its label, with a number where labels are alike."""
    labels = [run.label for run in runs]
    return tuple(Shown(run, _name(labels, index), series=index) for index, run in enumerate(runs))


def _name(labels: Sequence[str], index: int) -> str:
    label = labels[index]
    return label if labels.count(label) == 1 else f"{label} ({labels[: index + 1].count(label)})"


def _sections(shown: Sequence[Shown], field: Field) -> Iterator[Section]:
    drawn = (
        five_section(shown, field),
        decode_section(shown, field),
        concurrency_section(shown),
        context_section(shown),
        acceptance_section(shown),
    )
    yield from (section for section in drawn if section is not None)
    yield published_section(shown, field)


def _draw(chart: BarChart | LineChart) -> Drawn:
    if isinstance(chart, BarChart):
        return Drawn(chart.title, draw_bars(chart, WIDE), draw_bars(chart, NARROW))
    return Drawn(chart.title, draw_lines(chart, WIDE), draw_lines(chart, NARROW))


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what made a run, as name and value; what is not known is left out."""
    origin = run.origin
    recipe, engine, machine, weights = (
        origin.recipe,
        origin.engine,
        origin.machine,
        origin.checkpoint,
    )
    found = [
        ("recipe", f"{recipe.name} {recipe.fingerprint[:12]}" if recipe else None),
        ("served as", f"{origin.model} at {origin.url}"),
        ("model", f"{weights.source} {(weights.revision or '')[:12]}" if weights else None),
        ("vLLM", engine.version if engine else None),
        ("attention", engine.attention_backend if engine else None),
        ("LM head", engine.lm_head if engine else None),
        ("FP8 layers", engine.fp8_layers if engine else None),
        ("KV cache", _tokens(engine.kv_cache_tokens if engine else None)),
        ("machine", machine.product if machine else None),
        ("GPU", machine.gpu if machine else None),
        ("driver", machine.driver if machine else None),
        ("kernel", machine.kernel if machine else None),
        ("image", ", ".join(image.reference for image in origin.images)),
        ("started", run.started_at),
        ("record", run.run_id),
    ]
    yield from ((name, str(value)) for name, value in found if value not in {None, ""})
    yield from _watched(run)


def _watched(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the span of what the machine showed meanwhile, over all cells."""
    watches = [cell.machine for suite in run.suites for cell in suite.cells if cell.machine]
    for name, attribute, unit in (
        ("SM clock", "sm_clock_mhz", "MHz"),
        ("temperature", "temperature_c", "°C"),
        ("power", "power_w", "W"),
    ):
        spans = [span for watch in watches if (span := getattr(watch, attribute)) is not None]
        if spans:
            low, high = min(span.low for span in spans), max(span.high for span in spans)
            yield name, f"{figure(low, 0)} to {figure(high, 0)} {unit}"
    floors = [floor for watch in watches if plottable(floor := watch.memory_floor_bytes) and floor]
    if floors:
        yield "least free memory", f"{figure(min(floors) / 2**30)} GiB"


def _in_all(name: str, value: str, facts: Sequence[Mapping[str, str]]) -> bool:
    """Say whether several runs have a fact in common; it is then shown once."""
    return len(facts) > 1 and all(own.get(name) == value for own in facts)


def _without(own: Mapping[str, str], shared: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in own.items() if name not in shared}


def _tokens(count: int | None) -> str | None:
    return f"{count:,} tokens" if count else None


def _warnings(shown: Sequence[Shown]) -> Iterator[str]:
    """Yield what a reader must know before comparing."""
    for item in shown:
        for suite in item.run.suites:
            if not suite.is_complete:
                yield f"{item.name}: the suite {suite.name} was interrupted; what it had is shown."
            failed = sum(cell.failures for cell in suite.cells)
            if failed:
                asked = sum(r.requests for cell in suite.cells for r in cell.rounds)
                yield (
                    f"{item.name}: {failed} of {asked} requests of {suite.name} failed; "
                    "they are in no figure."
                )
    yield from _differences(shown)


def _differences(shown: Sequence[Shown]) -> Iterator[str]:
    """Yield the suites whose prompts are not the same in all runs."""
    for name in sorted({suite.name for item in shown for suite in item.run.suites}):
        found = {s.prompts for item in shown if (s := item.run.suite(name)) is not None}
        if len(found) > 1:
            yield f"The prompts of {name} are not the same in all runs: do not compare them."
