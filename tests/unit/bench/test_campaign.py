"""A whole campaign by the program: killed at three moments, a recipe that fails, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.bench.campaign.folder import DONE, CampaignBundle, read_bundle
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.settings import load_settings
from tests.fakes.vllm_server import TalkingEngine
from tests.unit.bench import campaign_lab
from tests.unit.bench.planted import HOME, PLANTED
from tests.unit.conftest import REPOSITORY

pytestmark = pytest.mark.outside

ARGUMENTS = ("bench", "campaign", "baseline", "v2", "--quick", "--yes")


@dataclass
class Lab:
    """The program in processes of its own, with Docker played and one engine for all recipes."""

    root: Path
    engine: TalkingEngine
    env: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        own = {"ENGINE": self.engine.url, "HOME": HOME}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.unit.bench.campaign_lab", *arguments],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **own, **self.env},
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments) as process:
            stdout, stderr = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def broken_off(self, number: signal.Signals, asks: str) -> subprocess.CompletedProcess[str]:
        """Run it until it asks the engine that, and send it the signal in the middle."""
        with self.start(*ARGUMENTS) as process:

            def kill(body: dict[str, Any]) -> None:
                if asks in body and process.poll() is None:
                    self.engine.before = lambda _body: None
                    process.send_signal(number)

            self.engine.before = kill
            stdout, stderr = process.communicate(timeout=120)
        self.engine.before = lambda _body: None
        return subprocess.CompletedProcess(ARGUMENTS, process.returncode, stdout, stderr)

    @property
    def log(self) -> list[str]:
        return (self.root / "log").read_text().splitlines()

    @property
    def folder(self) -> Path:
        (folder,) = (self.root / "state" / "campaigns").glob("*/")
        return folder

    @property
    def bundle(self) -> CampaignBundle:
        return read_bundle(self.folder / "bundle.json")

    def serve(self, recipe: str, **env: str) -> None:
        """Have something serve before the campaign, with a port of its own and variables."""
        sets = ("serve.port=8123", *(f"serve.env.{name}={value}" for name, value in env.items()))
        request = Request(recipe, sets)
        campaign_lab.up(resolve(request, load_settings()), request, None)

    def served(self) -> dict[str, Any] | None:
        file = self.root / "served.json"
        return json.loads(file.read_text()) if file.exists() else None


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, talking_engine: TalkingEngine) -> Lab:
    monkeypatch.setenv("LAB", str(tmp_path))
    return Lab(tmp_path, talking_engine)


@pytest.mark.slow
def test_killed_at_three_moments_each_step_is_done_once_and_what_served_is_back(lab: Lab) -> None:
    lab.serve("mtp-1", COLOUR=PLANTED["variable"])
    before = lab.served()
    lab.env["KILL_IN"] = "v2"
    assert lab.broken_off(signal.SIGKILL, "stream").returncode == -signal.SIGKILL
    assert lab.run(*ARGUMENTS).returncode == -signal.SIGKILL  # in the `up` of v2
    assert lab.served() != before
    assert lab.broken_off(signal.SIGINT, "tools").returncode == 130
    done = lab.run("bench", "campaign", "--resume", "--yes")
    assert done.returncode == 0, done.stderr
    assert lab.log == ["up mtp-1", *["up baseline"] * 2, *["up v2"] * 3, "up mtp-1"]
    assert lab.served() == before
    for recipe in lab.bundle.recipes:
        assert {step.ending for step in recipe.steps} == {DONE}
        assert recipe.run is not None
        assert [suite.name for suite in recipe.run.suites] == ["five", "decode", "load", "agents"]
        assert [len(suite.cells) for suite in recipe.run.suites] == [1, 1, 1, 2]
        assert [load.rate_per_s for load in recipe.run.suites[2].loads] == [4.0]
        assert len(recipe.needles) == 3
        assert all(item.is_found for item in recipe.needles)
    # The recipe baseline calls no tools.
    assert [len(recipe.steps) for recipe in lab.bundle.recipes] == [8, 9]
    assert [item.problem for item in lab.bundle.recipes[1].tools] == [""] * 4
    assert lab.bundle.recipes[1].quality is not None
    assert lab.bundle.recipes[1].quality.against == "baseline"
    assert lab.bundle.recipes[1].quality.top1_agreement.value == 1.0
    first_screen = (lab.folder / "report.html").read_text().partition("<figure")[0]
    assert "passes the gate beside baseline" in first_screen
    assert "(bench load)" in first_screen
    kept = [path.read_text() for path in lab.folder.iterdir()]
    assert not any(PLANTED["variable"] in text for text in kept)


def test_a_recipe_that_does_not_start_is_told_without_secrets_and_the_next_is_measured(
    lab: Lab,
) -> None:
    lab.env["FAIL"] = "baseline"
    done = lab.run(*ARGUMENTS)
    assert done.returncode == 8
    assert "1 of 2 recipes did not get through; baseline: up: baseline never" in done.stderr
    assert lab.log == ["up baseline", "up v2", "down"]
    first, second = lab.bundle.recipes
    assert [step.ending for step in first.steps] == ["done", "failed", *["skipped"] * 6]
    assert {step.ending for step in second.steps} == {"done"}
    page = (lab.folder / "report.html").read_text()
    assert "baseline never answered" in page
    for text in (page, (lab.folder / "bundle.json").read_text()):
        assert PLANTED["key"] not in text
        assert PLANTED["host"] not in text
    # The page of runs, and the steps within it.
    assert page.count("<html") == 1
    assert page.index('id="campaign"') < page.index("</body>")


def test_stopped_it_puts_back_and_says_what_was_not_run(lab: Lab) -> None:
    broken = lab.broken_off(signal.SIGINT, "stream")
    assert broken.returncode == 130
    assert "`sparkdeploy bench campaign --stop` ends it" in broken.stderr
    stopped = lab.run("bench", "campaign", "--stop", "--yes")
    assert stopped.returncode == 0, stopped.stderr
    assert lab.log == ["up baseline", "down"]
    assert lab.served() is None
    assert [step.ending for step in lab.bundle.recipes[1].steps] == ["not run"] * 9
