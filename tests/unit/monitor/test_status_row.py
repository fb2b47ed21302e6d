"""What `status` says of each deployment, at the widths of terminals, and of failed starts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy.evidence import ROOT_CAUSE
from sparkdeploy.errors import NodeError
from sparkdeploy.monitor import status
from sparkdeploy.monitor.status import FailedStart, failed_starts, with_failed_starts
from sparkdeploy.monitor.status_row import MemberRow, StatusRow, status_lines
from sparkdeploy.server.metrics import read_metrics
from sparkdeploy.shell import Completed
from sparkdeploy.units import iso_utc, local_time
from tests.fakes.containers import FakeContainers, container
from tests.fakes.http_server import TableServer, serving
from tests.fakes.machines import reached_alone
from tests.unit.conftest import REPOSITORY
from tests.unit.plain import plain_lines

MAIN = StatusRow(
    name="main",
    recipe="v2",
    state="healthy",
    port=8000,
    uptime_s=7502.0,
    memory_bytes=94_600_000_000,
    restarts=2,
    last_cause="CUDA error: an illegal memory access was encountered",
    url="http://127.0.0.1:8000/v1",
    model="qwen",
    exposure="loopback",
    since="2026-11-20T12:02:00+00:00",
    requests=12_804,
    requests_a_minute=102.4,
)
ROWS = (
    MAIN,
    replace(
        MAIN,
        name="coder",
        recipe="qwen3-coder-next",
        model="Qwen/Qwen3-Coder-Next-FP8",
        state="broken",
        url="http://127.0.0.1:8001/v1",
        port=8001,
        restarts=0,
        last_cause="",
        exposure="public",
        requests=None,
        requests_a_minute=None,
        nodes=("spark-a", "spark-b"),
        members=(MemberRow("spark-b", "exited (137)"),),
    ),
    StatusRow(name="old", recipe="mtp-2", state="exited (1)", exit_code=1, kept=1, port=8002),
)
FIGURES = ("8000", "12,804", "102.4", "88.1 GiB", "2h05m", "exited (137)", "exited (1)")


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_three_deployments_are_a_line_each_in_eighty_columns() -> None:
    three = [
        replace(MAIN, name=name, recipe=recipe, restarts=0, requests_a_minute=12_345.6)
        for name, recipe in (("main", "v2"), ("coder", "nemotron-3.5-lightning"), ("x" * 12, "v3"))
    ]
    head, *lines = plain_lines(status_lines(three), 80)
    assert head.split() == ["name", "state", "port", "recipe", "up", "requests", "memory"]
    assert [len(line.split()) for line in lines[:3]] == [8, 8, 8]  # GiB is a word of its own
    assert "/min" in plain_lines(status_lines(three[:1]), 80)[0]
    assert "URL" in plain_lines(status_lines(three), 150)[0]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_status_fits_the_widths_of_terminals(width: int) -> None:
    assert all(len(line) <= width for line in plain_lines(status_lines(ROWS), width))


@pytest.mark.parametrize("width", [40, 61, 80, 99, 120, 150, 200, None])
def test_no_figure_of_a_status_is_lost(width: int | None) -> None:
    text = "\n".join(plain_lines(status_lines(ROWS), width))
    assert [figure for figure in FIGURES if figure not in text] == []


def test_a_moment_is_as_short_as_tells_it() -> None:
    now = datetime(2026, 11, 20, 14, 30, tzinfo=UTC)
    assert local_time(now - timedelta(hours=2), now) == "12:30"
    assert local_time(now - timedelta(days=1), now) == "Thu 14:30"
    assert local_time(now - timedelta(days=7), now) == "2026-11-13 14:30"
    assert local_time(now + timedelta(days=2), now) == "2026-11-22 14:30"
    assert (iso_utc(now), iso_utc(None)) == ("2026-11-20T14:30:00+00:00", "")


COUNTED = """
vllm:request_success_total{finished_reason="stop",model_name="qwen"} 40.0
vllm:request_success_total{finished_reason="length",model_name="qwen"} 20.0
process_start_time_seconds 1000.0
"""


@pytest.mark.parametrize(
    ("text", "finished", "a_minute"),
    [
        (COUNTED, 60, 6.0),
        (COUNTED.replace("1000.0", "1599.0"), 60, None),
        (COUNTED.replace("1000.0", "9999.0"), 60, None),
        (COUNTED.replace("1000.0", "NaN"), 60, None),
        (COUNTED + 'process_start_time_seconds{pid="2"} 1300.0', 60, 12.0),
        ("vllm:request_success_total 0.0", 0, None),
        (COUNTED.replace("40.0", "+Inf"), None, None),
        (COUNTED.replace("40.0", "-90"), None, None),
    ],
)
def test_requests_a_minute_are_the_mean_since_the_server_began(
    text: str, finished: int | None, a_minute: float | None
) -> None:
    found = read_metrics(text)
    assert found is not None
    assert (found.finished, found.finished_a_minute(1600.0)) == (finished, a_minute)


@pytest.mark.outside
def test_a_row_comes_from_the_container_and_from_its_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(TableServer()) as server:
        text = COUNTED.replace("1000.0", str(time.time() - 600))
        server.answers["/metrics"] = (200, text)
        port = server.port
        fact = container("sparkdeploy-main", port=str(port))
        fact = replace(
            fact,
            labels={**fact.labels, labels.SERVED_NAME: "qwen", labels.EXPOSURE: "loopback"},
            started_at="2026-11-20T12:02:00.123456789Z",
        )
        reached_alone(monkeypatch, FakeContainers.of(fact))
        monkeypatch.setattr(status, "answers", lambda _fact: True)
        (row,) = status.current_rows()
    assert (row.url, row.model) == (f"http://127.0.0.1:{port}/v1", "qwen")
    assert (row.since, row.exposure) == ("2026-11-20T12:02:00+00:00", "loopback")
    assert row.requests == 60
    assert row.requests_a_minute == pytest.approx(6.0, rel=0.1)


def test_the_docs_show_what_is_printed() -> None:
    page = (REPOSITORY / "docs" / "using.md").read_text()
    assert "\n".join(plain_lines(status_lines(ROWS), 80)) in page


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
    assert with_failed_starts((MAIN,), {"main": FailedStart(7)}, tmp_path) == (MAIN,)
