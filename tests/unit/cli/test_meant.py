"""Words that are no command or option: the whole line that was meant."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.cli import meant
from sparkdeploy.cli.completion.words import load_words
from sparkdeploy.cli.meant import corrected

if TYPE_CHECKING:
    from tests.unit.program import Run

WORDS = load_words()
# What was typed, and what it is answered with, both behind `sparkdeploy`.
COMMANDS = {
    "ps": "status",
    "-q ps --json": "-q status --json",
    "kill -t 5 web": "down",
    "rm web --all": "down web --all",
    "run v2 --name x --on spark-2": "up v2 --name x --on spark-2",
    "pull org/name --json": "checkpoint pull org/name --json",
    "rmi cuda-0.25 cuda-0.33": "image rm cuda-0.25 cuda-0.33",
    "statsu": "status",
    "checkpoint list": "checkpoint ls",
    "recipe plan v2": "plan v2",
    "list --fits ps": "",
    "up -- --odd": "",
}
OPTIONS = {
    "up --prot 8001": "up --port 8001",
    "doctor --prot 8001": "doctor --set serve.port=8001",
    "plan v2 --hardwar spark": "plan v2 --hardware spark",
    "up v2 --max-model-len 64K --yes": "up v2 --max-len 64K --yes",
    "doctor v2 --port": "doctor v2 --set serve.port=VALUE",
    "up v2 --dry": "up v2 --dry-run",
    "up -v v2": "-v up v2",
    "logs web -n 20": "logs web --tail 20",
    "up v2 --xyzzy": None,
    "logs -fq": "",
}


@pytest.mark.parametrize(("typed", "answered"), [*COMMANDS.items(), *OPTIONS.items()])
def test_the_line_that_was_meant_is_said_whole(typed: str, answered: str | None) -> None:
    error = corrected(shlex.split(typed), WORDS)
    if answered:
        assert error is not None
        assert error.hint == f"did you mean `sparkdeploy {answered}`?"
    elif answered is None:
        assert error is not None
        assert "--help` lists them" in (error.hint or "")
    else:
        assert error is None


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        # Not by --set: `expect` has what others reported on which hardware.
        ("show v2 --hardware spark", "`sparkdeploy fits` and `sparkdeploy plan` have it"),
        ("status --suite five", "`sparkdeploy bench pair` and `sparkdeploy bench run` have it"),
    ],
)
def test_an_option_of_another_command_is_said_to_be_that_one_s(typed: str, hint: str) -> None:
    error = corrected(shlex.split(typed), WORDS)
    assert error is not None
    assert error.hint == hint


def test_every_answer_is_a_command_of_ours() -> None:
    for words in meant.ELSEWHERE.values():
        assert words in WORDS.commands
    for word in (*meant.ELSEWHERE, *meant.IN_WORDS):
        assert word not in WORDS.commands
    for path in meant.SETTINGS.values():
        assert path in WORDS.settings
    every = {name for command in WORDS.commands.values() for name in command.option_names()}
    assert set(meant.OPTIONS.values()) <= every


def test_a_mistyped_command_exits_as_any_wrong_usage_does(run: Run) -> None:
    done = run("kill", "web")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "error: there is no command kill\n  fix: did you mean `sparkdeploy down web`?\n"
    )


def test_what_is_wrong_with_words_of_ours_is_said_by_typer(run: Run) -> None:
    done = run("plan", "--show", "everything")
    assert done.returncode == 2
    assert "Invalid value for '--show'" in done.stderr


def test_what_was_typed_moves_no_terminal(run: Run) -> None:
    done = run("\x1b[2Jps")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr


def test_asking_for_help_or_the_version_ends_well(run: Run) -> None:
    assert run("--version").returncode == 0
    assert "Usage:" in run("up", "--help").stdout


def test_a_run_almost_called_like_a_command_of_bench_is_taken_for_that(
    run: Run, no_docker: None
) -> None:
    """With no engine to ask, that is what is said."""
    assert run("bench", "lss").returncode == 2
    assert run("bench", "web").returncode == 4
