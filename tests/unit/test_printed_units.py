"""A figure beside or below a unit is in that unit, wherever times are printed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.bench.load import parse_span
from sparkdeploy.bench.record import Cell
from sparkdeploy.bench.report import sections
from sparkdeploy.bench.tables import span_text
from sparkdeploy.monitor.draw import duration
from tests.fakes.bench_runs import loaded_run, sample_run
from tests.unit.program import Run

UNIT_S = {"ms": 1e-3, "s": 1.0, "min": 60.0}
SWEPT = sample_run("v2", speed=51.0).suites[2].cells
LOADED = next(suite for suite in loaded_run("v2", speed=51.0).suites if suite.name == "load").cells
FIGURES = {
    (of, heading): (say, cells)
    for of, figures, cells in (
        ("streams", sections.rows_of("concurrency"), SWEPT),
        ("contexts", sections.rows_of("context"), SWEPT),
        ("load", sections.rows_of("load"), LOADED),
    )
    for heading, say in figures.items()
    if re.search(r", m?s:", heading)
}
KINDS = {"time to first token": "ttft_s", "time per output": "tpot_s", "longest gaps": "gap_s"}


def latency_of(cell: Cell, heading: str) -> list[float]:
    kind = next(kind for words, kind in KINDS.items() if heading.startswith(words))
    found = getattr(cell.latency, kind)
    names = {"median": "p50", "95th": "p95", "99th": "p99"}
    return [getattr(found, name) for words, name in names.items() if words in heading]


@pytest.mark.parametrize("of", sorted(FIGURES))
def test_a_time_of_a_report_is_in_the_unit_of_its_heading(of: tuple[str, str]) -> None:
    say, cells = FIGURES[of]
    unit_s = UNIT_S[re.findall(r", (m?s):", of[1])[0]]
    for cell in cells:
        printed = [float(text) * unit_s for text in say(cell).split(" / ")]
        assert printed == pytest.approx(latency_of(cell, of[1]), rel=0.05)


@given(st.floats(0.0002, 90.0))
def test_a_duration_is_printed_with_its_unit(seconds: float) -> None:
    number, unit = duration(seconds).split()
    assert float(number) * UNIT_S[unit] == pytest.approx(seconds, rel=0.3)
    assert parse_span(span_text(seconds).replace(" ", ""), "x") == pytest.approx(seconds, rel=1e-4)


def rows_below(text: str, *headings: str) -> list[list[float]]:
    """Return the rows of figures below the line that has these headings."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if all(word in line for word in headings))
    found = []
    for line in lines[at + 1 :]:
        cells = line.replace(",", "").split()
        if not all(re.fullmatch(r"[\d.]+", item) for item in cells) or not cells:
            break
        found.append([float(item) for item in cells])
    return found


@pytest.mark.usefixtures("no_docker")
def test_an_estimates_milliseconds_are_those_of_its_tokens_a_second(run: Run) -> None:
    printed = run("plan", "v2-tq", "--hardware", "spark", "-v").stdout
    (step,) = re.findall(r"([\d.]+) ms for ([\d.]+) tokens", printed)
    ms, tokens = map(float, step)
    by_requests = rows_below(printed, "requests", "ms", "tok/s each")
    by_context = rows_below(printed, "context", "ms", "tok/s")
    assert len(by_requests) > 2
    assert len(by_context) > 2
    for requests, _gb, row_ms, each, together in by_requests:
        assert each == pytest.approx(tokens / (row_ms / 1000), rel=0.02)
        assert together == pytest.approx(requests * each, rel=0.02)
    for _context, _gb, row_ms, tok_s, *_plain in by_context:
        assert tok_s == pytest.approx(tokens / (row_ms / 1000), rel=0.02)
    assert by_requests[0][2] == pytest.approx(ms, rel=0.01)
