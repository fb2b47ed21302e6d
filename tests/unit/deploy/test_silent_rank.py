"""The log of a start: which rank is silent, and what is left out of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import cast

import pytest
from typer.testing import CliRunner

from sparkdeploy.cli.command_table import COMMANDS
from sparkdeploy.cli.main import program
from sparkdeploy.deploy.wait import silent_rank
from sparkdeploy.errors import NodeError
from sparkdeploy.monitor import status
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.node import node_behind
from sparkdeploy.server.crash import HUNG_RANK, Cause
from tests.unit.server.log_files import recorded

DIED_AT = datetime(2026, 11, 21, 10, 5, tzinfo=UTC)
HUNG = Cause(HUNG_RANK, "one rank stopped")


class Engine:
    def __init__(self, log: str | None) -> None:
        self.log = log

    def logs(self, _container_id: str, *, tail: int, timestamps: bool) -> Iterator[bytes]:
        assert timestamps
        assert tail > 0
        if self.log is None:
            raise NodeError("it broke off")
        yield self.log.encode()


def silent(cause: Cause, skew_s: float = 0.0, **logs: str | None) -> str:
    nodes = [node_behind(name, cast("DockerHost", Engine(log))) for name, log in logs.items()]
    return silent_rank(cause, nodes[0], DIED_AT, [(node, "c" * 64, skew_s) for node in nodes])


def test_the_rank_that_wrote_nothing_for_longest_is_named_with_its_last_line() -> None:
    said = silent(
        HUNG,
        head="2026-11-21T09:00:00.123456789Z TimeoutError\n",
        second="2026-11-21T10:04:59.1Z alive\n",
        third=(
            "2026-11-21T10:00:00.5Z loading shard 7\n"
            "2026-11-21T10:01:00.5Z spark-3:7:7 [0] NCCL INFO Channel 00\n"
            "2026-11-21T10:06:00.5Z shutting down\n"
        ),
    )
    assert "third was silent since 10:00:00 UTC, its last line: loading shard 7" in said


def test_a_clock_that_is_wrong_is_counted() -> None:
    other = "2026-11-21T10:05:30Z working\n"
    assert silent(HUNG, head="", other=other) == ""
    assert "since 10:04:30 UTC" in silent(HUNG, 60.0, head="", other=other)


@pytest.mark.parametrize("log", [None, "", "no time at all\n", "\x00\xff\n"])
def test_a_rank_that_cannot_be_read_is_not_accused(log: str | None) -> None:
    assert silent(HUNG, head="", other=log) == ""


def test_only_a_wait_in_vain_asks_for_the_other_ranks() -> None:
    assert silent(Cause("cuda_oom", "x"), head="", other="2026-11-21T10:00:00Z x\n") == ""


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
