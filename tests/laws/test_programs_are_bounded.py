"""A program that writes without an end, or does not end, is ended, whatever it is called.

Only `sparkdeploy.shell` starts programs (tests/unit/test_layers.py). Fakes in PATH write for ever.
"""

from __future__ import annotations

import inspect
import io
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkdeploy import shell
from sparkdeploy.authoring.source import git
from sparkdeploy.errors import NodeError, RecipeError
from sparkdeploy.node import ssh
from sparkdeploy.node.ssh import SshLink, SshTarget

ON_STDOUT = "exec cat /dev/zero"
ON_STDERR = "exec cat /dev/zero >&2"
NEVER_ENDING = "exec sleep 100"
HOLDING_ON = "trap '' TERM\nwhile :; do cat /dev/zero; done"
LIMIT_BYTES = 1 << 20
SHORT_S = 0.3

COLLECTORS: dict[str, Callable[[list[str]], object]] = {
    "run": shell.run,
    "run into": lambda argv: shell.run(
        argv, into=io.BytesIO(), timeout_s=60, max_bytes=LIMIT_BYTES
    ),
    "run on_text": lambda argv: shell.run(argv, on_text=lambda _: None),
}
READ_AS_IT_COMES = {"Running": "its reader keeps what it needs; `read_until` has limits"}
UNREAD = {"attached": "its output goes to our own standard streams"}


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "MAX_OUTPUT_BYTES", LIMIT_BYTES)
    monkeypatch.setattr(shell, "END_TIMEOUT_S", SHORT_S)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a program of this name in front of PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)

    return write


def test_every_function_that_starts_a_program_is_tried_here() -> None:
    starting = {
        name
        for name, value in vars(shell).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "") == shell.__name__
        and "argv" in inspect.signature(value).parameters
    }
    assert starting - {"Completed"} == {*COLLECTORS, *READ_AS_IT_COMES, *UNREAD} - {
        "run into",
        "run on_text",
    }


@pytest.mark.parametrize("name", ["git", "ssh", "docker"])
@pytest.mark.parametrize("body", [ON_STDOUT, ON_STDERR, HOLDING_ON])
@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_program_that_writes_without_an_end_is_ended(
    collector: str, body: str, name: str, fake: Callable[[str, str], None]
) -> None:
    fake(name, body)
    with pytest.raises(NodeError, match=f"`{name}` wrote more than 1 MiB, and was ended"):
        COLLECTORS[collector]([name])


@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_program_that_does_not_end_is_ended(
    collector: str, fake: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "LONGEST_S", SHORT_S)
    monkeypatch.setitem(
        COLLECTORS,
        "run into",
        lambda argv: shell.run(argv, into=io.BytesIO(), timeout_s=SHORT_S, max_bytes=1),
    )
    fake("git", NEVER_ENDING)
    with pytest.raises(NodeError, match=r"`git` did not end within 0\.3 s"):
        COLLECTORS[collector](["git"])


def test_a_program_that_stays_after_ctrl_c_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Staying:
        def wait(self, timeout_s: float | None = None) -> None:
            said.append(f"waits {timeout_s}")
            if timeout_s is not None:
                raise subprocess.TimeoutExpired("x", timeout_s)
            if len(said) == 1:
                raise KeyboardInterrupt

        def terminate(self) -> None:
            said.append("ended")

    said: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Staying())
    assert shell.attached(["x"], on_interrupt=lambda: said.append("told"), patience_s=3) is None
    assert said == ["waits None", "told", "waits 3", "ended", "waits None"]


@pytest.mark.parametrize("body", [ON_STDOUT, ON_STDERR])
def test_a_node_that_answers_without_an_end_is_given_up(
    body: str, fake: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "OPEN_TIMEOUT_S", 30.0)
    monkeypatch.setattr(shell, "MAX_ERROR_BYTES", LIMIT_BYTES)
    fake("ssh", body)
    with pytest.raises(NodeError, match="spark-2"):
        SshLink(SshTarget("spark-2", "spark-2.local"))


def test_of_errors_without_an_end_the_beginning_is_kept(
    fake: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "MAX_ERROR_BYTES", 4)
    fake("ssh", "printf 'words' >&2\nexec cat /dev/zero >&2")
    with shell.Running(["ssh"]) as program:
        assert program.read_until("never", timeout_s=30) is None
        while program.is_alive:
            time.sleep(0.01)
        assert program.errors() == "word"


def test_a_source_that_lists_without_an_end_is_refused(
    tmp_path: Path, fake: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git, "MAX_LIST_BYTES", LIMIT_BYTES)
    fake("git", ON_STDOUT)
    with pytest.raises(NodeError, match="wrote more than"):
        git.Repository(tmp_path / "repository").fetch("https://example.org/x", None)
    with pytest.raises(RecipeError, match="lists more than"):
        list(git.Repository(tmp_path).blobs("HEAD"))
