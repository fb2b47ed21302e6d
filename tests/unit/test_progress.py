"""Steps and failures on a terminal that draws, and that nothing of it comes elsewhere."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkdeploy.errors import Mistakes, UnhealthyError
from sparkdeploy.terminal.console import Console, failure_lines
from sparkdeploy.terminal.progress import Progress
from sparkdeploy.terminal.step import PlannedStep, Step
from sparkdeploy.terminal.style import plain_text
from tests.examples import examples
from tests.unit.emulator import Emulator

PLAIN = {"CI": "1", "NO_COLOR": "1", "TERM": "dumb"}


class Clock:
    """Goes on by a tenth of a second at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.1
        return self.now_s


class Still:
    """A clock that stands until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """Put a terminal that may be drawn on in the place of both streams."""
    made = Emulator(80, 24)
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(sys, "stdout", made)
    return made


def work(console: Console) -> None:
    """What an `up` does, as far as the console sees it."""
    with console.steps(PlannedStep("image engine"), PlannedStep("start of main")):
        with console.step("image engine") as step:
            follow(step)
        console.info("  sparkdeploy/engine:1, 4.8 GB")
        console.expect(PlannedStep("start of main", 3.0))
        with console.drawn_step("making the container"):
            pass
        with console.step("start of main") as step:
            follow(step)


def follow(step: Step) -> None:
    """Use all that a step can show."""
    step.stages([PlannedStep("loading"), PlannedStep("answering")])
    step.enter("loading")
    step.count(1, 2, "shards")
    step.recent(["one", "two"])
    step.place("spark-a", "is well")
    step.say("words")
    step.guess("loading", 5.0)
    step.progress(1_000, 2_000)
    step.enter("answering")


def test_done_steps_stay_and_the_rest_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    work(Console(clock=Clock()))
    lines = [line[:40].rstrip() for line in terminal.text().splitlines()]
    assert lines == [
        *("✓ loading", "✓ answering", "✓ image engine", "  sparkdeploy/engine:1, 4.8 GB"),
        *("✓ making the container", "✓ loading", "✓ answering", "✓ start of main"),
    ]


def fail(console: Console) -> None:
    """Fail within a stage."""
    with console.step("start of main") as step:
        step.enter("loading")
        raise UnhealthyError("x")


def test_a_failure_is_marked_and_the_streams_are_the_old_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = on_terminal(monkeypatch)
    console = Console(clock=Clock())
    with pytest.raises(UnhealthyError):
        fail(console)
    loading, start = terminal.text().splitlines()
    assert loading.startswith("✗ loading ")
    assert start.startswith("✗ start of main ")
    assert "failed after" in start
    assert vars(sys)["stderr"] is terminal
    console.info("after it")
    assert terminal.text().splitlines()[-1] == "after it"


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_plain_lines_where_nothing_may_be_drawn(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setenv(name, PLAIN[name])
    work(Console(clock=lambda: 0.0))
    assert "".join(terminal.written) == (
        "image engine: done (0.0s)\n  sparkdeploy/engine:1, 4.8 GB\nstart of main: done (0.0s)\n"
    )


def test_a_pipe_gets_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, clock = io.StringIO(), Still()
    monkeypatch.setattr(sys, "stderr", pipe)
    with Console(clock=clock).step("image") as step:
        step.say("too soon")
        for now_s, done_bytes in ((11.0, 1_000_000), (22.0, 2_000_000)):
            clock.now_s = now_s
            step.progress(done_bytes, 3_000_000, "layers" if now_s < 20 else "")
        clock.now_s = 77.0
        step.guess("compiling", 65.0)
        clock.now_s = 88.0
        step.say("words")
    assert pipe.getvalue() == (
        "  image: layers, 1.0 MB of 3.0 MB, ? left [11.0s]\n"
        "  image: 2.0 MB of 3.0 MB, 90.9 kB/s, 11.0s left [22.0s]\n"
        "  image: compiling, about 1m05s left [1m17s]\n"
        "  image: words [1m28s]\n"
        "image: done (1m28s)\n"
    )


@pytest.mark.parametrize("lines", [4, 8, 24, 60])
def test_cause_and_fix_are_last_at_any_height(lines: int) -> None:
    size = os.terminal_size((60, lines))
    log = "\n".join(f"config line {number} {'x' * 80}" for number in range(40))
    shown = [plain_text(it) for it in failure_lines(size, "it died: " + "why " * 20, "do it", log)]
    assert shown[-2:] == ["error: it died: " + "why " * 20, "  fix: do it"]
    rows = sum(-(-len(line) // 60) for line in shown)
    assert rows <= max(lines - 1, 3)
    if lines == 24:
        assert shown[0] == "  | (23 earlier lines are left out)"
        assert shown[-3].startswith("  | config line 39 xxx")
    if lines == 60:
        assert len(shown) == 42


def test_of_a_list_of_mistakes_nothing_is_left_out() -> None:
    mistakes = Mistakes("\n".join(f"{number} {'x' * 130}; did you mean y?" for number in range(40)))
    shown = failure_lines(os.terminal_size((60, 24)), "40 mistakes", "do it", mistakes)
    assert [plain_text(it) for it in shown[:-2]] == [f"  | {it}" for it in mistakes.splitlines()]
    assert plain_text(shown[-1]) == "  fix: do it"


@pytest.fixture
def clock() -> Still:
    return Still()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, clock: Still) -> Progress:
    """Steps of which a test asks the lines."""
    return Progress(cast("TextIO", on_terminal(monkeypatch)), clock, verbose=True)


def texts(progress: Progress, clock: Still, height: int = 24) -> list[str]:
    return [plain_text(line).rstrip() for line in progress.lines(clock(), height)]


def test_what_runs_stands_above_what_is_to_come_and_the_sum_is_last(
    drawn: Progress, clock: Still
) -> None:
    drawn.expect([PlannedStep("image base"), PlannedStep("image engine")])
    drawn.expect([PlannedStep("image engine"), PlannedStep("start of main", 90.0)])
    drawn.expect([PlannedStep("image base"), PlannedStep("image engine")])
    drawn.begin("image base").end("done")
    clock.now_s = 4.0
    drawn.begin("image engine").progress(1_000_000_000, 4_000_000_000)
    clock.now_s = 64.2
    assert texts(drawn, clock) == [
        "▸ image engine                                   1m00s",
        "  ██████░░░░░░░░░░░░░░░░░░  25%  1.0 GB of 4.0 GB",
        "· start of main                                  1m30s",
        "  1 done, 1 to come, 1m04s so far",
    ]


def test_a_step_that_takes_longer_than_usual_says_so(drawn: Progress, clock: Still) -> None:
    drawn.expect([PlannedStep("start of main", 20.0)])
    drawn.begin("start of main")
    clock.now_s = 12.0
    assert texts(drawn, clock)[-1] == "  12s so far, about 8s left"
    clock.now_s = 27.0
    assert "usual" not in "".join(texts(drawn, clock))
    clock.now_s = 31.0
    assert texts(drawn, clock) == [
        "▸ start of main                                  31s, usually 20s",
        "  31s so far, longer than usual",
    ]


def test_stages_stand_within_their_step_and_those_passed_over_are_gone(
    drawn: Progress, clock: Still
) -> None:
    drawn.expect([PlannedStep("start of main", 60.0), PlannedStep("sampling")])
    start = drawn.begin("start of main")
    start.stages([PlannedStep("a", 1), PlannedStep("b", 2), PlannedStep("c", 3)])
    clock.now_s = 5.0
    start.enter("b")
    clock.now_s = 6.0
    assert texts(drawn, clock) == [
        "▸ start of main                                  6s",
        "  ▸ b                                            1s",
        "  · c                                            3s",
        "· sampling",
        "  1 to come, 6s so far",
    ]
    start.end("done")
    drawn.begin("sampling")
    assert texts(drawn, clock)[-1] == "  1 done, 6s so far"


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(3, 60), st.integers(0, 4), st.integers(0, 30), st.integers(0, 8), st.integers(0, 3)
)
def test_the_innermost_step_is_shown_on_any_screen(
    height: int, depth: int, ahead: int, recent: int, places: int
) -> None:
    clock = Still()
    progress = Progress(cast("TextIO", Emulator(80, height)), clock, verbose=True)
    progress.expect([PlannedStep(f"later {number}", 1.0) for number in range(ahead)])
    for number in range(depth + 1):
        step = progress.begin(f"step {number}")
        step.count(1, 2, "parts")
        step.recent(["x"] * recent)
        for place in range(places):
            step.place(f"node {place}", "is well")
    shown = texts(progress, clock, height)
    assert len(shown) < height
    assert "so far" in shown[-1]


def test_what_the_process_writes_goes_above_by_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with Progress(sys.stderr, Still(), verbose=False) as progress:
        progress.begin("image engine")
        sys.stderr.write("one\ntw")
        assert terminal.text().startswith("one\n")
        sys.stdout.write("three \x1b[2J\n")
        with progress.paused():
            sys.stderr.write("Go on? no\n")
            assert terminal.text() == "one\nthree \\x1b[2J\ntwGo on? no"
    assert terminal.text() == "one\nthree \\x1b[2J\ntwGo on? no"
    assert vars(sys)["stderr"] is terminal


def test_a_terminal_that_has_gone_away_ends_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)

    def refuse(_text: str) -> int:
        raise OSError

    monkeypatch.setattr(terminal, "write", refuse)
    work(Console(clock=Clock()))
