"""What a rehearsal with the real vLLM looks like on a terminal."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.engine.program import Program
from tests.engine.terminal.screen import DRAWN, PROMPT, SIZES, screen

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("host"),
    pytest.mark.runs("rehearse"),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_rehearsal_shows_its_phases_and_what_it_proved(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    argv = [sys.executable, "-m", "sparkdeploy", "rehearse", "baseline"]
    with screen(argv, Program(tmp_path / "user").env, tmp_path / "screen", size) as shown:
        frame = shown.until_shown("▸ start of rehearsal", timeout_s=900)
        frames = shown.frames_to_the_end(timeout_s=900)
        assert shown.exit_code() == 0, shown.whole()
        whole = shown.whole()
    assert "· sampling, a conversation" in frame
    assert all(it.count("so far") <= 1 for it in frames)
    assert DRAWN.search(whole) is None, whole
    for title in ("twin checkpoint", "start of rehearsal", "4 texts", "sampling, a conversation"):
        assert len(re.findall(rf"^✓ {title} +\d", whole, re.MULTILINE)) == 1, whole
    assert "rehearsal of baseline: it answers" in whole
    assert whole.splitlines()[-1] == PROMPT
