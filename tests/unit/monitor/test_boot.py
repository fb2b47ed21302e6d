"""What `status` says of deployments that systemd has given up starting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.deploy.evidence import ROOT_CAUSE
from sparkdeploy.errors import NodeError
from sparkdeploy.monitor.status import FailedStart, failed_starts, with_failed_starts
from sparkdeploy.monitor.status_row import StatusRow, status_lines
from sparkdeploy.shell import Completed
from tests.unit.plain import plain_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# As systemd 252 prints it, of units whose names begin with `sparkdeploy-`.
TOLD = """\
ExecMainStatus=7
Id=sparkdeploy-main.service
ActiveState=failed

ExecMainStatus=0
Id=sparkdeploy-well.service
ActiveState=active

ExecMainStatus=3
Id=sparkdeploy-of.others.service
ActiveState=failed
"""


class Systemd:
    """A machine on which one program answers."""

    def __init__(self, told: str | None) -> None:
        self.told = told

    def read_file(self, path: str) -> str:
        raise NodeError(path)

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        assert (argv[0], timeout_s < 5) == ("systemctl", True)
        if self.told is None:
            raise NodeError("systemctl is missing")
        return Completed(tuple(argv), 0, self.told, "")


def crash(folder: Path, name: str, words: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / ROOT_CAUSE).write_text(f"{words}\n")


def test_failed_units_are_told_apart(tmp_path: Path) -> None:
    assert failed_starts(Systemd(TOLD), tmp_path) == {
        "main": FailedStart(7),
        "of.others": FailedStart(3),
    }
    assert failed_starts(Systemd(""), tmp_path) == {}
    assert failed_starts(Systemd(None), tmp_path) == {}


WOKEN = """\
Restart=no
ExecMainStatus=4
Id=sparkdeploy-main.service
ActiveState=failed

Id=sparkdeploy-main.socket
ActiveState=active
"""


def test_what_a_connection_starts_again_is_not_given_up(tmp_path: Path) -> None:
    assert failed_starts(Systemd(WOKEN), tmp_path) == {"main": FailedStart(4, is_woken=True)}
    disabled = WOKEN.replace("=active", "=inactive")
    assert failed_starts(Systemd(disabled), tmp_path) == {"main": FailedStart(4)}
    limited = WOKEN.replace("=no", "=on-failure")
    assert failed_starts(Systemd(limited), tmp_path) == {"main": FailedStart(4)}


@pytest.mark.parametrize("rows", [(), (StatusRow("main", "v2", "stopped"),)])
def test_it_is_said_that_the_next_connection_tries_again(
    tmp_path: Path, rows: tuple[StatusRow, ...]
) -> None:
    (row,) = with_failed_starts(rows, {"main": FailedStart(4, is_woken=True)}, tmp_path)
    text = "\n".join(plain_lines(status_lines((row,)), 200))
    assert (row.wake_failed, row.given_up) == ("exit code 4", "")
    assert "its last start failed because: exit code 4" in text
    assert "the next connection tries again" in text
    assert "reset-failed" not in text


def test_a_deployment_that_is_not_there_gets_a_row_with_the_reason(tmp_path: Path) -> None:
    crash(tmp_path, "main-20261120T120000Z", "out of memory: CUDA out of memory")
    crash(tmp_path, "main-2-20261121T120000Z", "of another deployment")
    (row,) = with_failed_starts((), {"main": FailedStart(7)}, tmp_path)
    text = "\n".join(plain_lines(status_lines((row,)), 200))
    assert (row.name, row.state) == ("main", "not started")
    assert "systemd has given it up, last because: out of memory: CUDA out of memory" in text
    assert "`sudo systemctl reset-failed sparkdeploy-main.service`" in text


def test_a_crash_explains_only_a_start_that_ended_with_one(tmp_path: Path) -> None:
    crash(tmp_path, "main-20261120T120000Z", "out of memory")
    (row,) = with_failed_starts((), {"main": FailedStart(3)}, tmp_path)
    assert row.given_up == "exit code 3"
    (row,) = with_failed_starts((), {"main": FailedStart(7)}, tmp_path / "empty")
    assert row.given_up == "exit code 7"
