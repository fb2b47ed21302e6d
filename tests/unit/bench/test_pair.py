"""`bench pair`: loads in turns, and recipes that are served one after the other."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sparkdeploy.bench import pair_recipes as stage
from sparkdeploy.bench.campaign.state import Before
from sparkdeploy.bench.endpoint import Access, reach_url
from sparkdeploy.bench.pair_recipes import RecipePair, are_recipes, one_after_the_other
from sparkdeploy.bench.run import WantedRun
from sparkdeploy.bench.suites import SuiteName
from sparkdeploy.errors import BenchError, NodeError, SparkdeployError, UnhealthyError, UsageError
from sparkdeploy.settings import load_settings
from tests.fakes.containers import FakeContainers, container

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkdeploy.deploy.request import Request
    from tests.fakes.vllm_server import FakeEngine
    from tests.unit.program import Done

FIVE = ("--suite", "five", "--rounds", "1", "--runs", "2")
DECODE = WantedRun((SuiteName.DECODE,), 1, (), (), prompts=1)
BEFORE = Before("mtp-1", {})


def sides_of(engine: FakeEngine) -> tuple[str, str]:
    """The same server by two addresses."""
    return engine.url, engine.url.replace("127.0.0.1", "localhost")


def records() -> list[dict[str, Any]]:
    shelf = Path(os.environ["SPARKDEPLOY_STATE_DIR"]) / "bench"
    found = [json.loads(path.read_text()) for path in shelf.glob("*.json")]
    return sorted(found, key=lambda record: (record["label"], record["run_id"]))


@pytest.mark.outside
def test_two_servers_are_measured_in_turns(
    bench: Callable[..., Done], engine: FakeEngine, tmp_path: Path
) -> None:
    done = bench("pair", *sides_of(engine), *FIVE)

    assert done.returncode == 0, done.stderr
    kept = [*(tmp_path / "state" / "bench").glob("*.json")]
    suites = [json.loads(path.read_text())["suites"] for path in kept]
    assert [[suite["name"] for suite in found] for found in suites] == [["five"]] * 4
    assert "five, tok/s end to end" in done.stdout
    assert "all runs of a side are of one start" in done.stderr


@pytest.mark.outside
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--suite", "five,load"), "a load is taken alone"),
        (("--name", "other"), "--name goes with two recipes"),
    ],
)
def test_words_that_do_not_go_together_are_refused(
    bench: Callable[..., Done], engine: FakeEngine, words: tuple[str, ...], said: str
) -> None:
    done = bench("pair", *sides_of(engine), *words)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert engine.given_tokens == 0


@dataclass
class Machine:
    """Serves one recipe at a time, by one engine, and says what was asked of it."""

    engine: FakeEngine
    asked: list[str] = field(default_factory=list)
    breaks: dict[int, BaseException] = field(default_factory=dict)
    """By the number of the `up`, from 1."""
    cannot_put_back: bool = False

    def up(self, _resolved: object, request: Request, *_settings: object, **_more: object) -> None:
        self.asked.append(f"up {request.recipe}")
        starts = sum(word.startswith("up ") for word in self.asked)
        if starts in self.breaks:
            raise self.breaks[starts]

    def put_back(self, before: Before | None, name: str, *_more: object) -> str:
        self.asked.append(f"put back {before.wanted if before else 'nothing'}")
        if self.cannot_put_back:
            raise NodeError(f"{name} has no room")
        return "as it was"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine) -> Machine:
    made = Machine(engine)
    monkeypatch.setattr(stage, "up", made.up)
    monkeypatch.setattr(stage, "put_back", made.put_back)
    monkeypatch.setattr(stage, "note_before", lambda *_: BEFORE)
    monkeypatch.setattr(stage, "restored", lambda *_: None)
    monkeypatch.setattr(stage, "reach_deployment", lambda *_: reach_url(engine.url, Access()))
    return made


def taken(**more: Any) -> None:
    asked = RecipePair(("v2", "mtp-2"), (), "main", more.pop("runs", 2))
    consent = more.pop("consent", lambda _question: True)
    with one_after_the_other(asked, DECODE, load_settings(), consent) as found:
        assert (found.base, found.other) == ("v2", "mtp-2")
        more["seen"](found)


def test_each_run_of_a_recipe_has_a_start_and_what_served_comes_back(machine: Machine) -> None:
    at_the_end: list[str] = []
    taken(seen=lambda _found: at_the_end.extend(machine.asked))

    assert at_the_end == ["up v2", "up mtp-2"] * 2  # the figures are told first
    assert machine.asked[4:] == ["put back mtp-1"]
    assert [record["label"] for record in records()] == ["mtp-2", "mtp-2", "v2", "v2"]


def test_it_is_asked_first(machine: Machine) -> None:
    asked: list[str] = []

    def refuse(question: str) -> bool:
        asked.append(question)
        return False

    with pytest.raises(SparkdeployError, match="nothing was measured"):
        taken(seen=print, consent=refuse)

    assert machine.asked == []
    assert "one after the other, 2 starts of each" in asked[0]
    assert "main runs mtp-1, which is put back at the end" in asked[0]


@pytest.mark.parametrize("reason", [KeyboardInterrupt(), UnhealthyError("it never answered")])
def test_what_ends_a_run_leaves_those_before_and_puts_back(
    machine: Machine, reason: BaseException
) -> None:
    machine.breaks = {3: reason}
    with pytest.raises(type(reason)):
        taken(seen=print)

    assert machine.asked == ["up v2", "up mtp-2", "up v2", "put back mtp-1"]
    assert sorted(record["label"] for record in records()) == ["mtp-2", "v2"]
    assert all(suite["is_complete"] for record in records() for suite in record["suites"])


def test_what_cannot_be_put_back_is_told_after_the_figures(machine: Machine) -> None:
    machine.cannot_put_back = True
    seen: list[object] = []
    with pytest.raises(BenchError, match="not put back: main has no room") as error:
        taken(seen=seen.append)

    assert len(seen) == 1
    assert error.value.hint == "`sparkdeploy up mtp-1 --name main` tries again"


def test_what_no_deployment_is_called_is_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    there = FakeContainers.of(
        container("sparkdeploy-main"), container("sparkdeploy-second", deployment="second")
    )
    monkeypatch.setattr(stage, "connect", lambda _settings: there)
    settings = load_settings()

    assert are_recipes(("v2", "v3"), settings)
    assert not are_recipes(("main", "second"), settings)
    with pytest.raises(UsageError, match="main is a deployment, and v3 is none"):
        are_recipes(("main", "v3"), settings)
    monkeypatch.setattr(stage, "connect", lambda _settings: SimpleNamespace())
    assert not are_recipes(("v3", "http://there"), settings)
