"""What `status` says of a vLLM that the guard has started again in its container."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from sparkdeploy.monitor import status
from sparkdeploy.monitor.status_row import status_lines
from tests.fakes.containers import FakeContainers, container
from tests.fakes.machines import reached_alone
from tests.unit.plain import plain_lines
from tests.unit.server.log_files import recorded

if TYPE_CHECKING:
    from sparkdeploy.monitor.status_row import StatusRow

SERVES = "(APIServer pid=8) INFO 06-03 10:20:11 [launcher.py:46] Application startup complete.\n"
FAULT = recorded("crashes/gpu_fault").decode()
MEMORY = recorded("crashes/cuda_oom").decode()


def restart(number: int, code: int = 1) -> str:
    said = f'{{"event": "restart", "exit_code": {code}, "restart": {number}, "max_restarts": 3}}'
    return f"sparkdeploy-guard: {said}\n"


@dataclass
class Logging(FakeContainers):
    """One container, and what was asked of its log."""

    log: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)

    def memory_bytes(self, _key: str) -> int:
        return 0

    def logs(self, *_: object, **options: Any) -> tuple[bytes, ...]:
        self.asked.append(options)
        raw = self.log.encode()
        return tuple(raw[at : at + 1000] for at in range(0, len(raw), 1000))


def engine_with(log: str, state: str = "running") -> Logging:
    fact = container("sparkdeploy-main", state)
    return Logging({fact.container_id: fact}, log=log)


def row_of(monkeypatch: pytest.MonkeyPatch, engine: FakeContainers) -> StatusRow:
    reached_alone(monkeypatch, engine)
    monkeypatch.setattr(status, "answers", lambda _fact: True)
    (row,) = status.current_rows()
    return row


def test_a_restart_is_shown_with_its_last_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    log = f"{SERVES}{MEMORY}{restart(1)}{SERVES}{FAULT}{restart(2)}{SERVES}"
    row = row_of(monkeypatch, engine_with(log))

    assert (row.state, row.restarts) == ("healthy", 2)
    assert "CUDA error" in row.last_cause
    shown = plain_lines(status_lines((row,)))
    assert f"  restarted 2 times, last because: {row.last_cause}" in shown
    assert {"restarts", "last_cause"} <= asdict(row).keys()


def test_the_guard_knows_of_restarts_that_the_end_of_the_log_does_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = row_of(monkeypatch, engine_with(f"{FAULT}{restart(3)}"))

    assert row.restarts == 3


@pytest.mark.parametrize(
    "log",
    ["", SERVES, f"{FAULT}{SERVES}", f"prompt: {restart(1)}", f"(x pid=1) {restart(2)}"],
)
def test_without_a_restart_nothing_is_said(monkeypatch: pytest.MonkeyPatch, log: str) -> None:
    row = row_of(monkeypatch, engine_with(log))

    assert (row.restarts, row.last_cause) == (0, "")
    assert not any("restarted " in line for line in plain_lines(status_lines((row,))))
