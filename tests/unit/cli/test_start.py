"""The program's table of commands, its exit code beside a reader that goes away, early Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
import typer

from sparkdeploy.cli.command_table import COMMANDS
from sparkdeploy.cli.main import program

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = (sys.executable, "-I", "-m", "sparkdeploy")


def test_each_summary_is_the_first_line_of_its_commands_own_help() -> None:
    whole = typer.main.get_command(program(COMMANDS))
    summaries = {name: entry.summary for name, entry in COMMANDS.items()}
    assert isinstance(whole, typer.core.TyperGroup)
    own = {name: command.get_short_help_str(300) for name, command in whole.commands.items()}
    assert own == summaries


@pytest.mark.outside
@pytest.mark.parametrize(("words", "code"), [("list", 0), ("show no-such-recipe", 3)])
def test_a_reader_that_goes_away_changes_no_exit_code(words: str, code: int) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            (*PROGRAM, *words.split()), stdout=write, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


@pytest.mark.outside
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_early_interruption_ends_with_130_and_one_line(number: int, tmp_path: Path) -> None:
    """The moments are spread over the imports and what the command loads first."""
    for moment in range(5):
        running = subprocess.Popen(
            (*PROGRAM, "plan", "v2"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "HOME": str(tmp_path)},
            text=True,
        )
        time.sleep(0.15 + 0.12 * moment)
        running.send_signal(number)
        _, said = running.communicate(timeout=60)
        if running.returncode in {-number, -signal.SIGINT, 0, 4}:
            continue  # before the program listened, or while Python ended
        assert (running.returncode, said.strip().splitlines()[-1:]) == (130, ["error: interrupted"])
        assert "Traceback" not in said
        assert "mistake" not in said


DIES_INTERRUPTED = """
import os, signal
from sparkdeploy.cli.start import Interruption

class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))

Interruption.hear()
try:
    Dying()
    signal.pause()
except KeyboardInterrupt:
    print("interrupted", end="")
"""


@pytest.mark.outside
def test_an_interruption_that_a_callback_swallows_comes_again() -> None:
    """Python only reports what is raised while an object is deleted, or compiled code calls."""
    done = subprocess.run(
        (sys.executable, "-I", "-c", DIES_INTERRUPTED),
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("interrupted", "")
