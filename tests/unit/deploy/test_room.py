"""Memory at the moment of a start, on a machine of the test's own."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.deploy import launch
from sparkdeploy.deploy.launch import RETURN_TIMEOUT_S, require_memory
from sparkdeploy.errors import NodeError
from sparkdeploy.estimate.memory import MemoryClaim, memory_claim
from sparkdeploy.monitor import status
from sparkdeploy.monitor.status_row import StatusRow, status_lines
from sparkdeploy.node.container import ListedContainer
from sparkdeploy.node.facts import NodeFact
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.shell import Completed
from tests.fakes.containers import Crashed, FakeContainers, container
from tests.fakes.machines import reached_alone
from tests.fakes.plans import GIB, SPARK
from tests.unit.plain import plain_lines
from tests.unit.server.log_files import recorded


@dataclass
class Clocked:
    """A node whose memory comes back after a while; sleeping is the only thing that takes time."""

    drop_caches: Path
    back_at_s: float = 0.0
    free: int = 120 * GIB
    now_s: float = 0.0
    meminfo: str | None = None
    listing: tuple[ListedContainer, ...] = ()
    is_here: bool = True

    def read_file(self, _path: str) -> str:
        available = 118 * GIB if self.now_s >= self.back_at_s else 20 * GIB
        sizes = {
            "MemTotal": 119 * GIB,
            "MemAvailable": available,
            "MemFree": min(self.free, available),
        }
        told = "".join(f"{name}: {size // 1024} kB\n" for name, size in sizes.items())
        return told if self.meminfo is None else self.meminfo

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s

    def monotonic(self) -> float:
        return self.now_s

    def script(self, _text: str) -> Completed:
        self.drop_caches.write_text("1\n")
        return Completed((), 0, "", "")


def require(node: Clocked, claim: MemoryClaim | None, *, drop: bool = False) -> None:
    made: Any = node
    require_memory(made, "main", claim, drop_page_cache=drop)


@pytest.fixture
def claim(shipped: Library) -> MemoryClaim:
    return claim_of(shipped, SPARK)


def claim_of(shipped: Library, node: NodeFact) -> MemoryClaim:
    resolved = load_recipe(shipped, "v2")
    claim = memory_claim(resolved.recipe, resolved.engine, node)
    assert claim is not None
    return claim


@pytest.fixture
def clocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocked:
    made = Clocked(tmp_path / "drop_caches")
    monkeypatch.setattr(launch, "time", made)
    return made


def test_memory_of_a_stopped_container_is_waited_for(claim: MemoryClaim, clocked: Clocked) -> None:
    clocked.back_at_s = 7
    # The list still has the one that is being replaced.
    clocked.listing = (container("sparkdeploy-main", memory_bytes=str(100 * GIB)),)
    require(clocked, claim)
    assert 7 <= clocked.now_s < 8


def test_memory_that_does_not_come_back_is_an_error(claim: MemoryClaim, clocked: Clocked) -> None:
    clocked.back_at_s = RETURN_TIMEOUT_S + 60
    with pytest.raises(NodeError, match=r"but only 20\.0 GiB are available"):
        require(clocked, claim, drop=True)


def test_a_page_cache_in_the_way_is_told_and_left_alone(
    claim: MemoryClaim, clocked: Clocked, capsys: pytest.CaptureFixture[str]
) -> None:
    clocked.free = 30 * GIB
    require(clocked, replace(claim, page_cache_counts=True), drop=True)
    require(clocked, claim)
    assert "the page cache holds" in capsys.readouterr().err
    assert not clocked.drop_caches.exists()


def test_a_page_cache_in_the_way_is_dropped_with_consent(
    claim: MemoryClaim, clocked: Clocked
) -> None:
    clocked.free = 30 * GIB
    require(clocked, claim, drop=True)
    assert clocked.drop_caches.read_text() == "1\n"


@pytest.mark.parametrize(("others_gib", "said"), [(60, "59.0"), (200, "0.0"), (14, "105.0")])
def test_memory_that_other_deployments_take_is_not_waited_for(
    claim: MemoryClaim, clocked: Clocked, others_gib: int, said: str
) -> None:
    loads = container("sparkdeploy-other", deployment="other", memory_bytes=str(others_gib * GIB))
    clocked.listing = (loads,)
    with pytest.raises(NodeError, match=f"only {re.escape(said)} GiB are available"):
        require(clocked, claim, drop=True)
    assert clocked.now_s == 0


def test_a_machine_whose_memory_nobody_knows_is_not_refused(
    claim: MemoryClaim, clocked: Clocked
) -> None:
    clocked.meminfo = ""
    require(clocked, claim)
    require(clocked, None)
    assert clocked.now_s == 0


SERVES = "(APIServer pid=8) INFO 06-03 10:20:11 [launcher.py:46] Application startup complete.\n"
FAULT = recorded("crashes/gpu_fault").decode()
MEMORY = recorded("crashes/cuda_oom").decode()


def restart(number: int, code: int = 1) -> str:
    said = f'{{"event": "restart", "exit_code": {code}, "restart": {number}, "max_restarts": 3}}'
    return f"sparkdeploy-guard: {said}\n"


class StartedAgain(Crashed):
    """What it wrote before its last start tells of nine restarts."""

    def logs(self, *_: object, **options: object) -> tuple[bytes, ...]:
        return super().logs() if options.get("this_run") else (restart(9).encode(),)


def engine_with(log: str, state: str = "running") -> Crashed:
    fact = container("sparkdeploy-main", state)
    return StartedAgain({fact.container_id: fact}, log=log)


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
    "log", ["", SERVES, f"{FAULT}{SERVES}", f"prompt: {restart(1)}", f"(x pid=1) {restart(2)}"]
)
def test_without_a_restart_nothing_is_said(monkeypatch: pytest.MonkeyPatch, log: str) -> None:
    row = row_of(monkeypatch, engine_with(log))
    assert (row.restarts, row.last_cause) == (0, "")
    assert not any("restarted " in line for line in plain_lines(status_lines((row,))))
