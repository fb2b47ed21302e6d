"""What `up` looks like on a terminal: a start, one that fails, one whose window is pulled at."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import free_port
from tests.engine.ground import Ground, ground
from tests.engine.terminal.page import hold_screen
from tests.engine.terminal.screen import DRAWN, EACH_SIZE, PROMPT, SIZES, Screen, screen

pytestmark = [
    pytest.mark.docker,
    pytest.mark.in_order,
    pytest.mark.timeout(180),
    pytest.mark.runs("up"),
]
LOADING = "--log spark-0.33-mtp --lines-per-s 9"
SEEN = "seen"
"""The file for which a start waits with 14 of 14 shards on the screen."""
PAUSED = f"--pause-at 14/14 --wait-for {SEEN}"
DYING = f"{LOADING} --die-after-s 1.5 --crash-log crashes/cuda_oom --exit-code 1"
CAUSE = "CUDA out of memory"


@pytest.fixture(scope="module")
def place(
    host: DockerHost, python_base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ground]:
    """A user with the stand-in on an engine of the test's own."""
    root = tmp_path_factory.mktemp("terminal")
    with ground(host, python_base_image, root, free_port()) as made:
        yield made


def up(
    place: Ground, folder: Path, size: tuple[int, int], behaviour: str, *options: str
) -> AbstractContextManager[Screen]:
    """Run `up` on a screen."""
    words = f"serve.env.STAND_IN={behaviour}"
    argv = [sys.executable, "-m", "sparkdeploy", *options, "up", "standin", "--yes", "--set", words]
    return screen(argv, place.cli.env, folder, size)


@pytest.mark.parametrize("size", EACH_SIZE, ids=str)
def test_a_start_is_shown_as_it_goes_and_leaves_what_was_done(
    request: pytest.FixtureRequest, place: Ground, tmp_path: Path, size: tuple[int, int]
) -> None:
    # Each replaces the one before it, and from the second on it is known what a start takes.
    seen = place.root / "model" / SEEN
    seen.unlink(missing_ok=True)
    behaviour = f"{LOADING} {PAUSED} --text {size[0]}"
    with up(place, tmp_path / "screen", size, behaviour, "-v") as shown:
        frame = shown.until_shown(" of 14 shards")
        seen.touch()
        frames = shown.frames_to_the_end()
        assert shown.exit_code() == 0
        whole, last = shown.whole(), shown.shows()
    assert re.search(r"^  ▸ loading (the draft )?weights +\ds$", frame, re.MULTILINE), frame
    assert re.search(r"^    [█░]{24} +\d+%  \d+ of 14 shards$", frame, re.MULTILINE), frame
    assert re.search(r"^    \| .", frame, re.MULTILINE), frame
    assert re.search(r"^  \d done, \d+s so far(, about \d+s left)?$", frame, re.MULTILINE), frame
    assert all(it.count("▸ start of main") <= 1 and it.count("so far") <= 1 for it in frames)
    assert DRAWN.search(whole) is None, whole
    assert re.search(r"^✓ loading weights +\d+\.\ds$", whole, re.MULTILINE), whole
    assert whole.count("✓ start of main ") == 1
    assert f"main answers at http://127.0.0.1:{place.port}/v1" in last
    assert '"content": "Hello"}]}\'\nnext: sparkdeploy status --watch' in whole
    assert last.splitlines()[-1] == PROMPT
    if size == SIZES[0]:
        hold_screen(request, "answered-80x24", last.removesuffix(PROMPT))


@pytest.mark.slow
def test_a_start_that_was_made_before_says_how_long_it_will_be(
    request: pytest.FixtureRequest, place: Ground, tmp_path: Path
) -> None:
    seen = place.root / "model" / SEEN
    seen.unlink(missing_ok=True)
    with up(place, tmp_path / "screen", SIZES[0], f"{LOADING} {PAUSED} --text again") as shown:
        frame = shown.until_shown(" of 14 shards")
        seen.touch()
        assert shown.wait() == 0
    assert re.search(r"so far, about \d+s left$", frame, re.MULTILINE), frame
    assert re.search(r"^  · capturing CUDA graphs +\d+s$", frame, re.MULTILINE), frame
    hold_screen(request, "start-80x24", frame)


def test_a_window_that_is_pulled_at_leaves_nothing_behind(place: Ground, tmp_path: Path) -> None:
    with up(place, tmp_path / "screen", (120, 40), f"{LOADING} --text pulled", "-v") as shown:
        shown.until_shown("▸ start of main")
        for columns, rows in ((80, 40), (200, 40), (90, 24), (81, 30)):
            shown.resize(columns, rows)
            shown.pause(0.6)
        frames = shown.frames_to_the_end()
        assert shown.exit_code() == 0
        whole = shown.whole()
    assert all(it.count("so far") <= 1 for it in frames[1:]), frames
    assert DRAWN.search(whole) is None, whole


@pytest.mark.parametrize(
    "size", [(80, 24), pytest.param((70, 10), marks=pytest.mark.slow)], ids=str
)
def test_a_failure_ends_with_its_cause_and_its_fix(
    request: pytest.FixtureRequest, place: Ground, tmp_path: Path, size: tuple[int, int]
) -> None:
    with up(place, tmp_path / "screen", size, f"{DYING} --text {size[1]}") as shown:
        assert shown.wait() == 7
        whole, last = shown.whole(), shown.shows()
    assert DRAWN.search(whole) is None, whole
    assert re.search(r"^✗ start of main +failed after \d", whole, re.MULTILINE), whole
    *_, fix, prompt = last.splitlines()
    assert prompt == PROMPT
    on_one_line = last.replace("\n", "")
    assert "error: sparkdeploy-main died while" in on_one_line
    assert CAUSE in on_one_line.partition("error: ")[2]
    assert "  fix: " in last, fix
    if size == SIZES[0]:
        hold_screen(request, "failed-80x24", last.removesuffix(PROMPT))


@pytest.mark.slow
def test_ctrl_c_ends_the_picture_too(place: Ground, tmp_path: Path) -> None:
    with up(place, tmp_path / "screen", SIZES[0], f"{LOADING} --text stopped") as shown:
        shown.until_shown("▸ start of main")
        shown.press("C-c")
        assert shown.wait() == 130
        whole = shown.whole()
        assert shown.cursor_is_visible()
    assert DRAWN.search(whole) is None, whole
    assert re.search(r"^✗ start of main +interrupted after", whole, re.MULTILINE), whole
    # As far as it was when it was interrupted: there was no earlier one to start again.
    assert re.search(r"main (was not replaced|goes on starting)", whole), whole
    assert whole.splitlines()[-2:] == ["error: interrupted", PROMPT]
