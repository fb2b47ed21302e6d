"""The table of owners' figures: made from bundles, and nothing in one becomes markup."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from sparkdeploy.bench.campaign.folder import CampaignBundle, SharedRecipe
from sparkdeploy.bench.files import json_text
from sparkdeploy.bench.record import Run
from sparkdeploy.errors import BenchError
from tests.fakes.bench_runs import bundle_with, sample_run
from tests.unit.conftest import REPOSITORY
from tools import owners_figures

SCHEMA = json.loads((REPOSITORY / "docs" / "bench-bundle.schema.json").read_text())


def bundle_of(*runs: Run) -> CampaignBundle:
    return bundle_with(*(SharedRecipe(run.label, "", (), run) for run in runs))


def table(folder: Path, bundle: CampaignBundle, name: str = "ada-2026-11-25") -> list[str]:
    text = json_text(bundle, CampaignBundle)
    jsonschema.validate(json.loads(text), SCHEMA)
    (folder / f"{name}.json").write_text(text)
    return [line for line in owners_figures.page(folder).splitlines() if line.startswith("|")][2:]


def test_each_recipe_has_card_driver_figure_and_interval(tmp_path: Path) -> None:
    rows = table(tmp_path, bundle_of(sample_run("baseline", speed=30.0), sample_run("v2")))
    machine = sample_run().origin.machine
    assert machine is not None
    for row, recipe, mean in zip(rows, ("baseline", "v2"), (29.0, 49.4), strict=True):
        assert row.startswith("| [ada-2026-11-25](ada-2026-11-25.json) 2026-11-25 | ")
        assert f"| {machine.gpu} | {machine.driver} | {recipe} | 0.25.1 | " in row
        spread = owners_figures.five(sample_run(recipe, speed=30.0 if mean < 40 else 51.0))
        assert spread is not None
        assert f"| {mean} | {spread.low95:.1f} to {spread.high95:.1f} | 3 |" in row


def test_what_is_not_whole_has_no_figure(tmp_path: Path) -> None:
    run = sample_run()
    broken_off = replace(run, suites=(replace(run.suites[0], is_complete=False),))
    quick = replace(bundle_of(broken_off), is_quick=True)
    (row,) = table(tmp_path, quick)
    assert "2026-11-25, quick |" in row
    assert "| not measured |" in row


def test_words_of_a_bundle_are_no_markup(tmp_path: Path) -> None:
    run = sample_run()
    assert run.origin.machine is not None
    hostile = replace(run.origin.machine, product="a | b\n# <img> [x](y) \x1b[31m")
    shown = replace(run, origin=replace(run.origin, machine=hostile))
    (row,) = table(tmp_path, bundle_of(shown))
    assert r"a \| b \# \<img\> \[x\]\(y\) \\x1b\[31m" in row


def test_a_file_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"kind": "something else"}')
    with pytest.raises(BenchError):
        owners_figures.page(tmp_path)


def test_the_page_is_what_the_bundles_say(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert owners_figures.main(["--check"]) == 0
    monkeypatch.setattr(owners_figures, "FOLDER", tmp_path)
    (tmp_path / "README.md").write_text("old")
    assert owners_figures.main(["--check"]) == 9
    assert "is stale" in capsys.readouterr().err
    assert owners_figures.main([]) == 0
    assert "No owner has given figures yet" in (tmp_path / "README.md").read_text()
