"""`bench report` as a user runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.bench.files import write_record
from tests.fakes.bench_runs import sample_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.program import Done


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Two runs of v2 and one of baseline, where `bench` keeps them."""
    folder = tmp_path / "state" / "bench"
    for moment, recipe in (("080000", "v2"), ("090000", "baseline"), ("100000", "v2")):
        run_id = f"20261121T{moment}Z-{recipe}"
        write_record(sample_run(recipe, run_id=run_id), folder / f"{run_id}.json")
    return folder


def test_the_newest_run_of_each_label_is_shown(
    kept: Path, tmp_path: Path, bench: Callable[..., Done]
) -> None:
    page = tmp_path / "page.html"
    (kept / "broken.json").write_text("{")
    done = bench("report", "-o", str(page))
    assert done.returncode == 0
    assert f"wrote {page}: 2 runs" in done.stdout
    assert "broken.json is not a record of a run" in done.stderr
    text = page.read_text()
    assert "20261121T100000Z-v2" in text
    assert "20261121T090000Z-baseline" in text
    assert "20261121T080000Z-v2" not in text


def test_runs_are_named_by_id_label_or_file(
    kept: Path, tmp_path: Path, bench: Callable[..., Done]
) -> None:
    page = tmp_path / "page.html"
    asked = ("baseline", "20261121T100000Z-v2", str(kept / "20261121T080000Z-v2.json"))
    assert bench("report", *asked, "-o", str(page)).returncode == 0
    assert page.read_text().count('class="run series-') == 3
