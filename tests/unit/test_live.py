"""Steps and failures on a terminal that draws, and that nothing of it comes elsewhere."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.agenda import Awaited
from sparkdeploy.console import Console
from sparkdeploy.errors import Mistakes, UnhealthyError
from sparkdeploy.ink import plain_text
from sparkdeploy.live import failure_lines
from tests.unit.emulator import Emulator

if TYPE_CHECKING:
    from sparkdeploy.console import Step

PLAIN = {"CI": "1", "NO_COLOR": "1", "TERM": "dumb"}


class Clock:
    """Goes on by a tenth of a second at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.1
        return self.now_s


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """Put a terminal that may be drawn on in the place of both streams."""
    made = Emulator(80, 24)
    for name in ("CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setattr(sys, "stdout", made)
    return made


def work(console: Console) -> None:
    """What an `up` does, as far as the console sees it."""
    with console.steps(Awaited("image engine"), Awaited("start of main")):
        with console.step("image engine") as step:
            follow(step)
        console.info("  sparkdeploy/engine:1, 4.8 GB")
        console.expect(Awaited("start of main", 3.0))
        with console.drawn_step("making the container"):
            pass
        with console.step("start of main") as step:
            follow(step)


def follow(step: Step) -> None:
    """Use all that a step can show."""
    step.stages([Awaited("loading"), Awaited("answering")])
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
        "✓ loading",
        "✓ answering",
        "✓ image engine",
        "  sparkdeploy/engine:1, 4.8 GB",
        "✓ making the container",
        "✓ loading",
        "✓ answering",
        "✓ start of main",
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


def test_a_pipe_gets_what_it_always_got(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, now_s = io.StringIO(), iter(range(0, 10_000, 11))
    monkeypatch.setattr(sys, "stderr", pipe)
    with Console(clock=lambda: float(next(now_s))).step("image") as step:
        step.progress(1_000_000, 3_000_000, "layers")
        step.progress(2_000_000, 3_000_000)
        step.guess("compiling", 65.0)
        step.say("words")
    assert pipe.getvalue() == (
        "  image: layers, 1.0 MB of 3.0 MB, ? left [33.0s]\n"
        "  image: 2.0 MB of 3.0 MB, 30.3 kB/s, 33.0s left [1m06s]\n"
        "  image: compiling, about 1m05s left [1m28s]\n"
        "  image: words [1m50s]\n"
        "image: done (2m12s)\n"
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
