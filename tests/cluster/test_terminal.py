"""What `up` over two machines looks like on a terminal: a line for each node."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.cluster.conftest import Program
from tests.engine.terminal.screen import DRAWN, PROMPT, SIZES, screen

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("stand_in", "recipe", "nothing_stays"),
    pytest.mark.runs("checkpoint", "down", "up"),
]
LOADS_FOR_SOME_SECONDS = "serve.env={STAND_IN_LOAD_S: '9'}"


def test_each_node_has_a_line_while_both_start(program: Program, tmp_path: Path) -> None:
    words = ("up", "tiny", "--cluster", "--yes", "--set", LOADS_FOR_SOME_SECONDS)
    argv = program.machine.command(sys.executable, "-m", "sparkdeploy", *words)
    with screen(argv, program.env, tmp_path / "screen", SIZES[1]) as shown:
        frame = shown.until_shown("of memory free", timeout_s=500)
        frames = shown.frames_to_the_end()
        assert shown.exit_code() == 0, shown.whole()
        whole = shown.whole()
    both = [it for it in frames if it.count("of memory free") == 2]
    assert both, frame
    assert re.search(r"^  spark-a  \d+\.\d GiB of memory free$", both[0], re.MULTILINE), both[0]
    assert re.search(r"^  spark-b  \d+\.\d GiB of memory free$", both[0], re.MULTILINE), both[0]
    assert all(it.count("so far") <= 1 for it in frames)
    assert DRAWN.search(whole) is None, whole
    assert re.search(r"^✓ image engine to spark-b +\d", whole, re.MULTILINE), whole
    assert whole.splitlines()[-1] == PROMPT
