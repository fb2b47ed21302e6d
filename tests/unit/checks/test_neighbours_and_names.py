"""What is advised about programs of others, a name that leads nowhere, and the driver's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkdeploy import shell
from sparkdeploy.checks.host import CheckedHost, _own_name
from sparkdeploy.checks.machine import check_driver_log, check_other_users, check_xids
from sparkdeploy.checks.report import Verdict
from sparkdeploy.errors import NodeError
from sparkdeploy.node.facts import GpuProcess
from tests.engine.conftest import until
from tests.unit.checks.recorded import Recording

CONTAINER = "ab" * 32


@pytest.mark.parametrize(
    "name",
    [
        *("VLLM::Worker_TP1", "VLLM::EngineCore", "/opt/venv/bin/vllm", "ray::RayWorkerWrapper"),
        *(
            *("sglang::scheduler_TP1", "trtllm-serve", "/usr/bin/ollama", "python3", ""),
            "llama-server",
        ),
    ],
)
@pytest.mark.parametrize("container", [None, CONTAINER])
def test_nobody_is_told_to_kill_a_rank(name: str, container: str | None) -> None:
    fix = check_other_users((GpuProcess(4711, name, 1, container),), frozenset()).fix or ""
    assert "kill" not in fix
    is_rank = any(word in name.lower() for word in ("vllm", "ray::", "sglang", "trtllm"))
    assert ("end that as a whole" in fix) == is_rank


@pytest.mark.parametrize(
    ("addresses", "verdict"),
    [
        ("192.168.1.7 STREAM spark\n169.254.1.1 STREAM\n", Verdict.OK),
        ("127.0.1.1 STREAM spark\n", Verdict.OK),
        ("169.254.17.3 STREAM spark\n", Verdict.WARN),
        ("fe80::1%enp1s0f1np1 STREAM spark\n", Verdict.WARN),
        ("192.168.177.11 STREAM spark\n", Verdict.WARN),
        ("", Verdict.NOT_SEEN),
        ("nonsense\n", Verdict.NOT_SEEN),
    ],
)
def test_the_machines_name_leads_to_a_network_that_clients_have(
    addresses: str, verdict: Verdict
) -> None:
    machine = Recording({}, {"uname -n": "spark", "getent ahosts spark": addresses})
    host = CheckedHost(machine, {}, fabric=frozenset({"192.168.177.11"}))
    assert _own_name(host).verdict is verdict


def test_a_driver_of_the_wrong_flavour_is_called_that() -> None:
    line = (
        "kernel: NVRM: The NVIDIA GPU 000f:01:00.0 (PCI ID: 10de:2e12) installed in this system "
        "requires use of the NVIDIA open kernel modules."
    )
    finding = check_driver_log([line])
    assert "wrong flavour" in finding.seen
    assert "nvidia-driver-580-open" in (finding.fix or "")
    gsp = check_xids(["NVRM: Xid (PCI:000f:01:00): 119, pid=1, GSP"]).fix or ""
    assert "modinfo -F license nvidia" in gsp
    assert "modinfo" not in (check_xids(["NVRM: Xid (PCI:000f:01:00): 79, x"]).fix or "")


def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    """A shell that is ended leaves its child; that would hold a GPU or a port."""
    said = tmp_path / "pid"
    with pytest.raises(NodeError, match="did not end within"):
        shell.run(("sh", "-c", f"sleep 600 & echo $! > {said}; wait"), timeout_s=0.5)
    stat = Path("/proc") / said.read_text().strip() / "stat"
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")
