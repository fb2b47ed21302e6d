"""What commands print for a person, laid out for every width, and painted on terminals alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy.bench.compare import Side, compare
from sparkdeploy.bench.files import KeptRun
from sparkdeploy.bench.tables import comparison_lines, list_lines, run_lines
from sparkdeploy.checkpoint.store import Stored
from sparkdeploy.checks import report
from sparkdeploy.checks.report import fail, not_seen, ok, warn
from sparkdeploy.cli.checkpoint import _stored_table
from sparkdeploy.cli.image import _image_table
from sparkdeploy.terminal.console import Console
from sparkdeploy.terminal.style import Style, line_cells, plain_text
from sparkdeploy.terminal.tables import Block, TextTable, laid_out, longest_word
from sparkdeploy.upkeep.images import ImageRow
from tests.fakes.bench_runs import sample_run
from tests.unit.conftest import REPOSITORY
from tests.unit.golden import assert_golden
from tests.unit.plain import plain_lines
from tests.unit.program import Run

WIDTHS = (40, 47, 61, 79, 80, 99, 120, 151, 200, 250)
HANGING = 12
"""No line begins further right than this."""
COMMANDS = {
    "list": ("list",),
    "list --fits": ("list", "--fits", "spark"),
    "show": ("show", "v2"),
    "plan": ("plan", "v2"),
    "plan --hardware": ("plan", "v2-tq", "--hardware", "spark"),
    "list WORD": ("list", "qwen"),
    "config": ("config",),
}
FINDINGS = (
    ok("machine.gpu", "NVIDIA GB10, compute capability 12.1"),
    warn("machine.driver", "driver 590.44.01 hangs in CUDA graphs", "install driver 580"),
    fail(
        "docker.engine",
        "no Docker Engine answers at unix:///var/run/docker.sock: permission denied",
        "sudo usermod -aG docker anna && newgrp docker && docker run --rm hello-world",
    ),
    not_seen("network.hub", "nobody was asked"),
)


def untitled(block: Block) -> Block:
    if not isinstance(block, TextTable):
        return block
    return replace(block, columns=tuple(replace(it, title="") for it in block.columns))


def assert_complete(blocks: list[Block]) -> None:
    """Every word and figure is there at every width, and nothing sticks out that need not."""
    whole = Counter(" ".join(plain_lines(map(untitled, blocks))).split())
    for width in WIDTHS:
        lines = list(laid_out(blocks, width))
        held = Counter(" ".join(map(plain_text, lines)).split())
        assert whole - held == Counter(), width
        for line in lines:
            assert line_cells(line) <= max(width, longest_word(line) + HANGING), plain_text(line)


@pytest.mark.usefixtures("no_docker")
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_of_a_command_is_lost_at_any_width(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    said: list[Block] = []
    monkeypatch.setattr(Console, "answer_blocks", lambda _self, blocks: said.extend(blocks))
    run(*COMMANDS[command])
    assert said
    assert_complete(said)


IMAGES = [
    ImageRow(f"sparkdeploy/{stage}:85e10328cf28f945", stage, "cuda-0.25", "linux/arm64", size, used)
    for stage, size, used in (
        ("plugin", 21_400_000_000, ("main", "coder")),
        ("base", 4_812_000_000, ()),
    )
]
STORED = [
    Stored(
        "download",
        "Intel/Qwen3.5-122B-A10B-int4-AutoRound",
        "main = 111111111111, verified",
        Path("/a"),
        72_400_000_000,
        72_400_000_000,
    ),
    Stored("prepared", "v2-0123456789ab", "complete", Path("/b"), 4_900_000_000, 1_200_000),
]


def comparison() -> Iterator[Block]:
    base, other = (
        Side(name, (sample_run(name, speed=speed),)) for name, speed in (("v2", 51.0), ("v3", 58.5))
    )
    yield from comparison_lines(compare(base, other))


TABLES = {
    "doctor": lambda: report.lines(FINDINGS),
    "images": lambda: [_image_table(IMAGES)],
    "checkpoints": lambda: [_stored_table(STORED)],
    "runs": lambda: list_lines([KeptRun(sample_run(), Path("/runs/a.json"))]),
    "run": lambda: run_lines(sample_run()),
    "compared": comparison,
}


@pytest.mark.parametrize("name", TABLES)
def test_nothing_of_a_table_is_lost_at_any_width(name: str) -> None:
    assert_complete(list(TABLES[name]()))


@pytest.mark.parametrize("name", ["doctor", "images", "checkpoints", "runs"])
def test_a_table_on_a_terminal_of_80_columns(request: pytest.FixtureRequest, name: str) -> None:
    text = "\n".join(plain_lines(TABLES[name](), 80)) + "\n"
    assert_golden(request, f"tables/{name}.txt", text)


def test_a_failure_is_red_and_its_fix_stands_in_one_line() -> None:
    table = next(iter(report.lines(FINDINGS)))
    lines = list(laid_out([table], 60))
    pieces = [piece for line in lines for piece in line]
    red = " ".join(piece.text.strip() for piece in pieces if piece.style is Style.BAD)
    assert red.startswith("x no Docker Engine answers at")
    assert any(plain_text(line).endswith(f"fix: {FINDINGS[2].fix}") for line in lines)


def test_a_pipe_is_plain_and_loads_nothing_that_draws() -> None:
    code = (
        "import sys\n"
        "from sparkdeploy.cli.main import main\n"
        "for word in ('list', '--help'):\n"
        "    sys.argv = ['sparkdeploy', word]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        "assert 'rich' not in sys.modules"
    )
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=REPOSITORY)
    assert "\x1b" not in done.stdout
    assert "  * v2 " in done.stdout
    assert "Usage: " in done.stdout


def on_terminal(columns: int, **environment: str) -> str:
    """Return what `config` writes on a terminal of that many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    plain = {"CI", "COLUMNS", "NO_COLOR"}
    env = {key: value for key, value in os.environ.items() if key not in plain}
    with subprocess.Popen(
        [sys.executable, "-m", "sparkdeploy", "config"],
        stdin=theirs,
        stdout=theirs,
        env={**env, "TERM": "xterm-256color", **environment},
        cwd=REPOSITORY,
    ):
        os.close(theirs)
        said = b""
        # The terminal's end comes as an error.
        with contextlib.suppress(OSError):
            while chunk := os.read(ours, 65536):
                said += chunk
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


@pytest.mark.outside
def test_a_terminal_gets_inks_and_lines_that_fit_it() -> None:
    said = on_terminal(80)
    plain = re.sub(r"\x1b\[[\d;]*m", "", said)
    assert "\x1b[2m" in said
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 80
