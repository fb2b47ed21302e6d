"""What `bench campaign` does about bugs, refusals, and what cannot be put back."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sparkdeploy.bench.campaign import run as stage
from sparkdeploy.bench.campaign.folder import (
    Before,
    CampaignBundle,
    StepKind,
    campaigns_below,
    read_bundle,
)
from sparkdeploy.errors import NodeError, UnhealthyError
from tests.unit.program import Run


@dataclass
class Hands:
    """Does no step, and says what was asked."""

    asked: list[str] = field(default_factory=list)
    breaks: dict[StepKind, BaseException] = field(default_factory=dict)
    cannot_put_back: bool = False

    def serve(self, recipe: int) -> str:
        self._do(StepKind.UP)
        return f"answered {recipe}"

    def take(self, _recipe: int, kind: StepKind) -> str:
        self._do(kind)
        return f"well, {kind.value}"

    def put_back(self, _before: Before | None, name: str, *_more: object) -> str:
        self.asked.append("put back")
        if self.cannot_put_back:
            raise NodeError(f"{name} has no room")
        return "as it was"

    def _do(self, kind: StepKind) -> None:
        self.asked.append(kind.value)
        if kind in self.breaks:
            raise self.breaks[kind]


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr(stage, "Steps", lambda *_: made)
    monkeypatch.setattr(stage, "note_before", lambda *_: None)
    monkeypatch.setattr(stage, "put_back", made.put_back)
    return made


def folders() -> list[Path]:
    return sorted(campaigns_below(Path(os.environ["SPARKDEPLOY_STATE_DIR"])).glob("*/"))


def left() -> CampaignBundle:
    (folder,) = folders()
    return read_bundle(folder / "bundle.json")


def words_of(kind: StepKind) -> tuple[str, str]:
    steps = {step.step: step for step in left().recipes[0].steps}
    return steps[kind.value].ending, steps[kind.value].words


def test_a_campaign_says_how_far_it_is_and_where_its_report_lies(run: Run, hands: Hands) -> None:
    done = run("bench", "campaign", "v2", "--yes")
    assert done.returncode == 0, done.stderr
    assert "[1/11] v2: doctor\n" in done.stderr
    assert "[3/11] v2: five\n" in done.stderr
    assert "[11/11] putting back what served before\n" in done.stderr
    assert hands.asked == [*StepKind, "put back"]
    assert f"report: {folders()[0] / 'report.html'}" in done.stdout
    assert left().notes == ("at the end: as it was",)


def test_without_recipes_the_default_is_measured_beside_baseline(run: Run, hands: Hands) -> None:
    answer = run.answer("bench", "campaign", "--quick", "--yes", "--json")
    assert Path(answer["report"]).exists()
    assert [recipe.name for recipe in left().recipes] == ["baseline", "v2"]


def test_a_bug_in_one_step_costs_the_night_nothing_else(run: Run, hands: Hands) -> None:
    hands.breaks[StepKind.TOOLS] = KeyError("choices")
    hands.breaks[StepKind.DOCTOR] = UnhealthyError("no look was had")
    done = run("bench", "campaign", "v2", "--quick", "--yes")
    assert done.returncode == 8
    assert "1 of 1 recipes did not get through; v2: tools: unexpected KeyError" in done.stderr
    assert words_of(StepKind.TOOLS) == ("failed", "unexpected KeyError: 'choices'")
    assert words_of(StepKind.DOCTOR) == ("failed", "no look was had")
    assert hands.asked[-2:] == ["tools", "put back"]


def test_what_cannot_be_put_back_is_said_and_tried_again(run: Run, hands: Hands) -> None:
    hands.cannot_put_back = True
    done = run("bench", "campaign", "v2", "--quick", "--yes")
    assert done.returncode == 8
    assert "what served before was not put back: main has no room" in done.stderr
    assert "--stop` tries again" in done.stderr
    other = run("bench", "campaign", "mtp-1", "--yes")
    assert other.returncode == 2
    assert "is not over" in other.stderr
    hands.cannot_put_back = False
    assert run("bench", "campaign", "--stop", "--yes").returncode == 0
    assert hands.asked[-2:] == ["put back", "put back"]
    assert run("bench", "campaign", "--stop", "--yes").returncode == 8


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("no-such-recipe",), 3),
        (("v2", "qwen3-vl-embedding"), 2),
        (("v2", "--set", "serve.prot=1"), 3),
        (("v2", "--resume"), 2),
        (("--resume", "--stop"), 2),
        (("--resume",), 8),
        (("v2", "--name", "No!"), 2),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_begun(
    run: Run, hands: Hands, words: tuple[str, ...], code: int
) -> None:
    assert run("bench", "campaign", *words, "--yes").returncode == code
    assert hands.asked == []
    assert folders() == []
