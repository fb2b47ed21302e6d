"""A run as CSV says what its record says."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.bench.csv_text import csv_text
from sparkdeploy.bench.files import write_record
from sparkdeploy.bench.load.record import Asking, LoadResult
from tests.fakes.bench_runs import sample_run

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.bench.record import Run as BenchRun
    from tests.unit.program import Run


def loaded_run() -> BenchRun:
    run = sample_run()
    load = LoadResult("poisson", 2.0, 0, 0.0, 10.0, 20, 1, 1.9, 100.0, 50.0, 3, {"ttft": 2.0}, 18)
    cell = replace(run.suites[0].cells[0], load=load, concurrency=0)
    suite = replace(run.suites[0], name="load", cells=(cell,), asking=Asking.OPEN_LOOP)
    return replace(run, suites=(*run.suites, suite))


def rows_of(run: BenchRun) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(csv_text(run))))


def test_every_cell_has_a_line_that_says_how_it_was_asked() -> None:
    run = loaded_run()

    rows = rows_of(run)

    cells = [(suite, cell) for suite in run.suites for cell in suite.cells]
    assert len(rows) == len(cells)
    for row, (suite, cell) in zip(rows, cells, strict=True):
        assert row["suite"] == suite.name
        assert row["asking"] == suite.asking.value
        assert float(row["decode_tok_s"]) == cell.statistics["decode_tok_s"].mean
        assert cell.latency.ttft_s is not None
        assert float(row["all_ttft_s_p95"]) == cell.latency.ttft_s.p95
        assert (row["load_rate_per_s"] == "") is (cell.load is None)
    assert rows[-1]["load_held"] == "18"
    assert rows[-1]["load_goodput_per_s"] == ""


def test_a_stranger_s_label_is_no_formula() -> None:
    rows = rows_of(replace(sample_run(), label='=HYPERLINK("http://x")'))

    assert rows[0]["label"] == '\'=HYPERLINK("http://x")'


@pytest.mark.outside
def test_show_prints_it(run: Run, tmp_path: Path) -> None:
    write_record(loaded_run(), tmp_path / "run.json")

    done = run("bench", "show", str(tmp_path / "run.json"), "--csv")

    assert done.stdout == csv_text(loaded_run())
    both = run("bench", "show", str(tmp_path / "run.json"), "--csv", "--json")
    assert both.returncode == 2
