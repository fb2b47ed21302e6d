"""Which lines show the steps of a command, by a clock of the test's own."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.agenda import Agenda, Awaited, ended_line
from sparkdeploy.ink import plain_text
from tests.examples import examples


def texts(agenda: Agenda, now_s: float, height: int = 24) -> list[str]:
    return [plain_text(line).rstrip() for line in agenda.lines(now_s, height)]


def test_what_runs_stands_above_what_is_to_come_and_the_sum_is_last() -> None:
    agenda = Agenda(0.0)
    agenda.expect([Awaited("image base"), Awaited("image engine"), Awaited("start of main", 90.0)])
    done = agenda.begin("image base", 0.0)
    agenda.end(done)
    agenda.begin("image engine", 4.0).tell(share=0.25, figures="1.0 GB of 4.0 GB", left_s=30.0)
    assert texts(agenda, 64.2) == [
        "▸ image engine                                   1m00s",
        "  ██████░░░░░░░░░░░░░░░░░░  25%  1.0 GB of 4.0 GB, 30s left",
        "· start of main                                  1m30s",
        "  1 done, 1 to come, 1m04s so far, about 2m00s left",
    ]


def test_a_step_that_takes_longer_than_usual_says_so() -> None:
    agenda = Agenda(0.0)
    agenda.expect([Awaited("start of main", 20.0)])
    agenda.begin("start of main", 0.0)
    assert texts(agenda, 12.0)[-1] == "  12s so far, about 8s left"
    assert texts(agenda, 27.0)[-1] == "  27s so far"
    assert texts(agenda, 31.0) == [
        "▸ start of main                                  31s, usually 20s",
        "  31s so far, longer than usual",
    ]


def test_stages_stand_within_their_step_and_those_passed_over_are_gone() -> None:
    agenda = Agenda(0.0)
    agenda.expect([Awaited("start of main", 60.0), Awaited("sampling")])
    start = agenda.begin("start of main", 0.0)
    start.to_come, start.has_stages = [Awaited("a", 1), Awaited("b", 2), Awaited("c", 3)], True
    agenda.begin("b", 5.0)
    assert texts(agenda, 6.0) == [
        "▸ start of main                                  6s",
        "  ▸ b                                            1s",
        "  · c                                            3s",
        "· sampling",
        "  1 to come, 6s so far",
    ]
    agenda.end(start)
    agenda.begin("sampling", 9.0)
    assert texts(agenda, 9.0)[-1] == "  1 done, 9s so far"


def test_words_change_once_a_second_and_the_bar_at_once() -> None:
    agenda = Agenda(0.0)
    step = agenda.begin("download", 0.0)
    step.tell(share=0.0, figures="0 B", said="a.safetensors")
    before = texts(agenda, 0.0)
    step.tell(share=0.5, figures="5 B", said="b.safetensors")
    soon, later = texts(agenda, 0.5), texts(agenda, 1.0)
    assert [line.replace("█", "░") for line in soon] == [it.replace("█", "░") for it in before]
    assert soon[1].count("█") == 12
    assert later[1:3] == ["  ████████████░░░░░░░░░░░░  50%  5 B", "  b.safetensors"]


@settings(max_examples=examples(60))
@given(
    st.integers(2, 60), st.integers(0, 4), st.integers(0, 30), st.integers(0, 8), st.integers(0, 3)
)
def test_the_innermost_step_is_shown_on_any_screen(
    height: int, depth: int, ahead: int, recent: int, places: int
) -> None:
    agenda = Agenda(0.0)
    agenda.expect([Awaited(f"later {number}", 1.0) for number in range(ahead)])
    for number in range(depth + 1):
        step = agenda.begin(f"step {number}", 0.0)
        step.tell(share=0.5, figures="1 of 2", recent=("x",) * recent, said="words")
        for place in range(places):
            step.place(f"node {place}", "is well")
    shown = texts(agenda, 10.0, height)
    assert len(shown) < height
    if height > 2:
        assert any(f"▸ step {depth}" in line for line in shown)
        assert "so far" in shown[-1]


def test_a_step_that_has_ended_leaves_a_line() -> None:
    step = Agenda(0.0).begin("image engine", 0.0)
    assert plain_text(ended_line(step, "done", "4m03s")).split() == [
        "✓",
        "image",
        "engine",
        "4m03s",
    ]
    assert plain_text(ended_line(step, "failed", "12s")).endswith("  failed after 12s")
