"""The program's table of commands, its exit code beside a reader that goes away, early Ctrl-C."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

from sparkdeploy.cli.command_table import COMMANDS
from sparkdeploy.cli.deployments import _rehearsal_lines
from sparkdeploy.cli.main import program, typed_path
from sparkdeploy.rehearsal.rehearse import CONVERTED, NOT_COMPARED, Report
from sparkdeploy.server.facts import EngineFacts
from tests.unit.program import Run

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


def await_handler(program: subprocess.Popen[str]) -> None:
    """Wait until the program itself hears SIGTERM: before that, Python ends as it likes."""
    status = Path(f"/proc/{program.pid}/status")
    while True:
        caught = int(status.read_text().partition("SigCgt:")[2].split()[0], 16)
        if caught >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.005)


@pytest.mark.outside
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_early_interruption_ends_with_130_and_one_line(number: int, tmp_path: Path) -> None:
    """The moments are spread over the imports and what the command loads first."""
    for moment in range(6):
        running = subprocess.Popen(
            (*PROGRAM, "plan", "v2"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "HOME": str(tmp_path)},
            text=True,
        )
        await_handler(running)
        time.sleep(0.12 * moment)
        running.send_signal(number)
        _, said = running.communicate(timeout=60)
        if running.returncode in {-number, -signal.SIGINT, 0, 4}:
            continue  # while Python ended
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


IMPORTS_FOR_LONG = """
import os, signal, sys, time
from sparkdeploy.cli import start

class Slow:
    def find_spec(self, name, *_):
        if name == "sparkdeploy.cli.main":
            os.kill(os.getpid(), signal.SIGINT)
            start.Interruption.at_s -= 60
            {end}

sys.meta_path.insert(0, Slow())
start.main()
"""


@pytest.mark.outside
@pytest.mark.parametrize("end", ["pass", "raise ImportError", "raise KeyboardInterrupt"])
def test_an_interruption_counts_however_long_the_import_took(end: str) -> None:
    done = subprocess.run(
        (sys.executable, "-I", "-c", IMPORTS_FOR_LONG.format(end=end)),
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


FIRST = ["list", "plan", "up", "status", "down"]


def test_the_commands_of_a_first_day_stand_on_top() -> None:
    assert list(COMMANDS)[: len(FIRST)] == FIRST


def groups(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    if below:
        yield path, command
    for name, inner in below.items():
        yield from groups(inner, f"{path} {name}")


def test_help_on_80_columns_shows_every_summary_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    whole = typer.main.get_command(program(COMMANDS))
    shown = [
        line
        for path, group in groups(whole, "sparkdeploy")
        for line in group.make_context(path, ["x"], resilient_parsing=True).get_help().splitlines()
        if not line.startswith("Usage: ")
    ]
    assert [line for line in shown if line.endswith("...") or len(line) > 80] == []
    assert len(shown) > 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("stautus", "unknown command 'stautus'; did you mean 'status', 'start'?"),
        ("recipe frob", "unknown command 'frob'"),
        ("cluster", "a command is missing"),
        ("up --prot 1", "unknown option --prot; did you mean --port?"),
        ("up --port", "--port needs a value"),
        ("up --detach=3", "--detach takes no value"),
        ("up --port 5", "--port: '5' is not at least 1024"),
        ("up --port 70000", "--port: '70000' is not at most 65535"),
        ("up --port a", "--port: 'a' is not a whole number"),
        ("plan --show x", "--show: 'x' is none of 'dockerfile', 'args', 'container', 'mods'"),
        ("switch", "argument RECIPE is missing"),
        ("config x y", "unexpected argument: x y"),
    ],
)
def test_a_mistake_on_the_command_line_is_said_in_one_line(run: Run, words: str, said: str) -> None:
    done = run(*words.split())
    typed = words.partition(" ")[0]
    fix = f"sparkdeploy {typed} --help" if typed in COMMANDS else "sparkdeploy --help"
    assert done.returncode == 2
    assert done.stderr == f"error: {said}\n  fix: {fix}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("bench run x --rate 2", "--rate\n  fix: `sparkdeploy bench load` has it"),
        ("plan v2 --zone", "--zone\n  fix: sparkdeploy plan --help"),
        ("up --gpus all v2", "--gpus\n  fix: sparkdeploy up --help"),
    ],
)
def test_an_option_of_another_command_is_found_there_and_none_that_begins_otherwise(
    run: Run, words: str, said: str
) -> None:
    assert run(*words.split()).stderr == f"error: unknown option {said}\n"


def test_an_option_without_its_value_leads_to_the_help_of_its_own_command(run: Run) -> None:
    said = run("--quiet", "export", "systemd", "-o").stderr
    assert said == "error: -o needs a value\n  fix: sparkdeploy export systemd --help\n"
    whole = typer.main.get_command(program(COMMANDS))
    for path, group in groups(whole, "sparkdeploy"):
        for name in group.commands:
            typed = f"{path} {name}"
            assert typed_path(whole, ["-q", *typed.split()[1:], "x", name, "-o"]) == typed


REPORT = Report(
    recipe="v2",
    changes=(),
    startup_s=50.0,
    answers=(),
    speculation=None,
    facts=EngineFacts(lm_head="int8", fp8_layers=144),
    reference=NOT_COMPARED,
    base_url="http://127.0.0.1:18152",
    endpoint="/v1/chat/completions",
    model="qwen",
    is_kept=True,
    deployment="rehearsal",
    asked=(),
    proved=("start",),
    not_proved="weights",
)


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/embeddings"])
def test_a_rehearsal_that_is_kept_ends_with_a_request(endpoint: str) -> None:
    *_, last = _rehearsal_lines(replace(REPORT, endpoint=endpoint))
    tried, *words = shlex.split(last)
    assert (tried, words[0]) == ("try:", "curl")
    assert f"http://127.0.0.1:18152{endpoint}" in words
    assert json.loads(words[-1])["model"] == "qwen"


def test_one_that_was_taken_down_proposes_nothing() -> None:
    assert not [line for line in _rehearsal_lines(replace(REPORT, is_kept=False)) if "curl" in line]


def test_the_conversion_is_in_the_lines_and_in_the_json() -> None:
    assert "  converted: 144 FP8 layers, LM head int8" in _rehearsal_lines(REPORT)
    content = json.loads(json.dumps(REPORT.as_dict(), default=str))
    assert (content["fp8_layers"], content["lm_head"]) == (144, "int8")
    assert set(CONVERTED) < content.keys()
    assert "facts" not in content
    assert content["is_compared"] is False
