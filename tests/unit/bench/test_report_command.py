"""`bench report` as a user runs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sparkdeploy.bench.files import write_record
from sparkdeploy.cli.main import main
from tests.fakes.bench_runs import sample_run


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["sparkdeploy", "bench", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def kept() -> Path:
    """Two runs of v2 and one of baseline, where `bench` keeps them."""
    folder = Path(os.environ["SPARKDEPLOY_STATE_DIR"]) / "bench"
    for moment, recipe in (("080000", "v2"), ("090000", "baseline"), ("100000", "v2")):
        run_id = f"20261121T{moment}Z-{recipe}"
        write_record(sample_run(recipe, run_id=run_id), folder / f"{run_id}.json")
    return folder


def test_the_newest_run_of_each_label_is_shown(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    (kept / "broken.json").write_text("{")
    assert run("-o", str(page), monkeypatch=monkeypatch) == 0
    said = capsys.readouterr()
    assert f"wrote {page}: 2 runs" in said.out
    assert "broken.json is no record of a run" in said.err
    text = page.read_text()
    assert "20261121T100000Z-v2" in text
    assert "20261121T090000Z-baseline" in text
    assert "20261121T080000Z-v2" not in text


def test_runs_are_named_by_id_label_or_file(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    file = str(kept / "20261121T080000Z-v2.json")
    asked = ("baseline", "20261121T100000Z-v2", file)
    assert run(*asked, "-o", str(page), monkeypatch=monkeypatch) == 0
    assert page.read_text().count('class="run series-') == 3
