"""What a download looks like on a terminal, from a hub of the tests' own."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.program import Program
from tests.engine.terminal.page import hold_screen
from tests.engine.terminal.screen import DRAWN, EACH_SIZE, PROMPT, SIZES, screen
from tests.hub.double import HubDouble, Repo, hub_double

pytestmark = [pytest.mark.timeout(120), pytest.mark.runs("checkpoint")]
COMMIT = "c" * 40
FILE_BYTES = 6 << 20
BYTES_PER_S = 2 << 20


@pytest.fixture
def double(tmp_path: Path) -> Iterator[HubDouble]:
    """A hub whose repository of 18 MiB takes three seconds."""
    folder = tmp_path / "repository"
    folder.mkdir()
    dice = random.Random(5)
    for number in (1, 2, 3):
        (folder / f"model-{number}.safetensors").write_bytes(dice.randbytes(FILE_BYTES))
    (folder / "config.json").write_text("{}")
    with hub_double() as made:
        made.repos["lab/model"] = Repo({COMMIT: folder}, {"main": COMMIT})
        made.bytes_per_s = BYTES_PER_S
        yield made


@pytest.mark.parametrize("size", EACH_SIZE, ids=str)
def test_a_download_shows_bytes_rate_and_what_is_left(
    request: pytest.FixtureRequest, double: HubDouble, tmp_path: Path, size: tuple[int, int]
) -> None:
    env = Program(tmp_path / "user", {"HF_ENDPOINT": double.endpoint}).env
    argv = [sys.executable, "-m", "sparkdeploy", "checkpoint", "pull", "lab/model"]
    with screen(argv, env, tmp_path / "screen", size) as shown:
        frame = shown.until_shown("MB/s")
        frames = shown.frames_to_the_end()
        assert shown.exit_code() == 0
        whole = shown.whole()
    figures = r"\d+\.\d MB of 18\.9 MB, \d+\.\d MB/s, \d+s left"
    assert re.search(rf"^  [█░]{{24}} +\d+%  {figures}$", frame, re.MULTILINE), frame
    assert re.search(r"^▸ download of lab/model +\d+s$", frame, re.MULTILINE), frame
    assert all(it.count("▸") <= 1 for it in frames)
    assert DRAWN.search(whole) is None, whole
    first, done, folder, prompt = whole.splitlines()
    assert first.startswith("lab/model at cccccccccccc: 18.9 MB to download of 18.9 MB, ")
    assert re.fullmatch(r"✓ download of lab/model +\d+\.\ds", done)
    assert folder.endswith(f"models--lab--model/snapshots/{COMMIT}")
    assert prompt == PROMPT
    if size == SIZES[0]:
        hold_screen(request, "download-80x24", frame)
