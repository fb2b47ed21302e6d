"""Quality that was judged once is found again beside the runs of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.bench.files import read_all
from sparkdeploy.bench.quality.comparison import QualityResult, keep, read_result
from sparkdeploy.bench.report.page import read_published, report_page
from tests.fakes.bench_runs import judged, sample_run
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.bench.record import Run

V2, V3, BASELINE = (sample_run(name) for name in ("v2", "v3", "baseline"))


def page(runs: list[Run], quality: list[QualityResult | None]) -> str:
    field = read_published(REPOSITORY / "recipes" / "facts" / "published.yaml")
    return report_page(runs, field, made_at="now", version="0.1.0", quality=quality)


def test_the_first_screen_says_what_the_gate_says() -> None:
    failing = judged(V2, BASELINE, failures=("the top token agrees in 40 % of positions",))
    told = page([V2, V3, BASELINE], [None, judged(V2, V3), failing])
    first_screen = told.partition("<figure")[0]
    assert "is the reference" in first_screen
    assert "passes the gate beside v2" in first_screen
    assert "fails the gate beside v2" in first_screen
    assert "98.7 (98.0 to 99.0)" in first_screen
    assert "the top token agrees in 40 % of positions" in told


def test_a_quality_that_nobody_measured_is_told_with_the_command_for_it() -> None:
    told = page([V2, V3], [None, None])
    assert "not measured" in told
    assert "sparkdeploy bench quality" in told
    assert "passes the gate" not in told


def test_a_result_is_kept_once_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "quality"
    assert keep(judged(V2, V3), folder) == keep(judged(V2, V3), folder)
    keep(judged(V2, BASELINE, taken_at="2026-11-24T08:00:00+00:00"), folder)
    (folder / "0.json").write_text("{")
    found, (damage,) = read_all(folder, read_result)
    assert [one.candidate.name for one in found] == ["baseline", "v3"]
    assert "0.json" in damage
