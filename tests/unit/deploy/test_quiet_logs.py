"""`logs` with and without what NCCL tells of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from sparkdeploy.cli.command_table import COMMANDS
from sparkdeploy.cli.main import program
from sparkdeploy.monitor import status
from tests.unit.server.log_files import recorded

if TYPE_CHECKING:
    from collections.abc import Iterator

TALK = recorded("nccl/2.30.4-socket").decode()
LOG = f"loading\n{TALK}serving\nanswered\n"


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container whose log Docker gives in pieces."""

    def read_log(
        _name: str, *, node: str | None = None, follow: bool, tail: int | None
    ) -> Iterator[str]:
        del node, follow
        lines = LOG.splitlines(keepends=True)
        text = "".join(lines if tail is None else lines[-tail:] if tail else [])
        yield from (text[at : at + 100] for at in range(0, len(text), 100))

    monkeypatch.setattr(status, "read_log", read_log)


def shown(*words: str) -> list[str]:
    done = CliRunner().invoke(program(COMMANDS), ["logs", "main", *words])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


@pytest.mark.parametrize("more", [(), ("--follow",)])
def test_the_log_is_vllms_unless_nccl_is_asked_for(more: tuple[str, ...]) -> None:
    own = shown(*more)
    assert (own[0], own[-2:]) == ("loading", ["serving", "answered"])
    assert not any("NCCL INFO" in line for line in own)
    assert shown("--nccl", *more) == LOG.splitlines()


def test_the_last_lines_are_found_behind_nccls() -> None:
    everything = shown()
    assert shown("--tail", "4") == everything[-4:]
    assert shown("--tail", "4", "--follow") == everything[-4:]
    assert shown("--tail", "99", "--follow") == everything
    assert everything[-4] != LOG.splitlines()[-4]
    assert shown("--tail", "0") == []
    assert shown("--tail", "1", "--nccl") == ["answered"]
