"""Captures and results of quality as files, and `bench quality` over them as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkdeploy.bench.files import read_all
from sparkdeploy.bench.quality.capture import Capture, read_capture, write_capture
from sparkdeploy.bench.quality.comparison import QualityResult, keep, read_result
from sparkdeploy.bench.record import Run
from sparkdeploy.bench.report.page import read_published, report_page
from sparkdeploy.errors import BenchError
from tests.fakes.bench_runs import judged, sample_run
from tests.unit.bench.captures import capture, logs, text
from tests.unit.conftest import REPOSITORY
from tests.unit.program import Done

GOOD = capture(text((1, logs(t1=0.8, t2=0.2))), text((1, logs(t1=0.7, t2=0.3)), name="b"))
BAD = capture(
    text((1, logs(t1=0.2, t2=0.8))), text((1, logs(t1=0.7, t2=0.3)), name="b"), label="two"
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    for name, content in (("good", GOOD), ("bad", BAD)):
        write_capture(content, tmp_path / f"{name}.json")
    return str(tmp_path / "good.json"), str(tmp_path / "bad.json")


def test_a_capture_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "capture.json"
    write_capture(GOOD, path)
    assert read_capture(path) == GOOD
    assert [item.name for item in path.parent.iterdir()] == ["capture.json"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[", "is not a quality capture"),
        ('{"schema": 1}', "is not a quality capture"),
        (json.dumps({"kind": GOOD.kind, "schema": 99}), "has schema 99"),
        (json.dumps({"kind": GOOD.kind, "schema": 1}), "is damaged: label"),
    ],
)
def test_what_is_no_capture_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(BenchError, match=said):
        read_capture(path)


def test_the_gate_exits_eight(files: tuple[str, str], bench: Callable[..., Done]) -> None:
    good, bad = files
    assert bench("quality", good, good, "--gate").returncode == 0
    assert bench("quality", good, bad).returncode == 0
    done = bench("quality", good, bad, "--gate", "--json")
    assert done.returncode == 8
    assert json.loads(done.stdout)["gate"]["passed"] is False
    assert (
        "bad (two) is not close enough to good (one): top-1 agreement 50.00% is below 97.00%"
        in done.stderr
    )
    loose = ("--min-agreement", "0.5", "--max-kl", "9", "--max-perplexity-rise", "9")
    assert bench("quality", good, bad, "--gate", *loose).returncode == 0
    assert bench("quality", good, bad, "--gate", *loose, "--max-drift", "0.1").returncode == 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "a comparison has two sides, and 0 came"),
        (("a.json", "b.json", "c.json"), "and 3 came"),
        (("a.json", "b.json", "--save", "c.json"), "--save captures one side"),
        (("a.json", "--save", "c.txt"), "ends in .json"),
    ],
)
def test_a_command_line_without_sense(
    arguments: tuple[str, ...], said: str, bench: Callable[..., Done]
) -> None:
    done = bench("quality", *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_fingerprint_is_of_the_texts_alone() -> None:
    def fingerprint(of: Capture) -> str:
        return of.fingerprint

    assert fingerprint(GOOD) == fingerprint(BAD)
    assert fingerprint(GOOD) != fingerprint(capture(GOOD.texts[0]))


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
