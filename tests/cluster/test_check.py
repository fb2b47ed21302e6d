"""What `cluster` says of two machines, and of each thing that can be wrong with them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import Program, said_in_time
from tests.cluster.machines import TWINS, Machine, configure

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300), pytest.mark.runs("cluster")]
FIRST, SECOND = (name for name, _ in TWINS)
HOUR_S = 3600


def failed(program: Program) -> list[dict[str, Any]]:
    done = program.run("cluster", "check", "--json")
    found = [item for item in json.loads(done.stdout) if item["verdict"] == "fail"]
    assert done.returncode == (4 if found else 0), done.stderr
    return found


def test_two_sound_machines_have_nothing_to_object(program: Program) -> None:
    assert failed(program) == []
    shown = program.run("cluster", "show").stdout
    assert "spark-a: head (this machine)" in shown
    assert "spark-b: ssh 10.77.0.12" in shown


@pytest.mark.slow
def test_discover_writes_down_the_hosts_that_have_a_gpu(
    program: Program, head: Machine, worker: Machine
) -> None:
    asked = ("cluster", "discover", "--hosts", f"{head.address},{worker.address}")
    head.give_command("nvidia-smi", "echo NVIDIA GB10, 580.95")
    try:
        done = program.run(*asked)
        assert "10.77.0.12 does not count: nvidia-smi names no GPU" in done.stderr
        worker.give_command("nvidia-smi", "echo NVIDIA GB10, 580.95")
        found = yaml.safe_load(program.run(*asked).stdout)["cluster"]["nodes"]
    finally:
        head.take_command("nvidia-smi")
        worker.run("rm -f /usr/local/sbin/nvidia-smi")
    assert [node["name"] for node in found] == ["spark-a", "spark-b"]
    assert [port["interface"] for port in found[1]["fabric"]] == [FIRST, SECOND]
    assert found[1]["fabric"][1]["address"] == "10.78.0.12/24"


def test_a_host_key_that_is_not_known_is_never_taken(program: Program, head: Machine) -> None:
    known = head.own / "ssh" / "known_hosts"
    text = known.read_text()
    known.write_text("")
    try:
        (found,) = failed(program)
    finally:
        known.write_text(text)
    assert found["node"] == "spark-b"
    assert "host key is not known" in found["seen"]
    assert "ssh root@10.77.0.12 true" in found["fix"]
    assert known.read_text() == text


def break_mtu(worker: Machine) -> None:
    worker.run(f"ip link set {FIRST} mtu 1500")


def break_clock(worker: Machine) -> None:
    worker.give_command("date", f"echo $(( $(/bin/date +%s) + {HOUR_S} )).0")


def break_master_port(worker: Machine) -> None:
    worker.run("iptables -A OUTPUT -p tcp --dport 29501 -j DROP")


def break_every_port(worker: Machine) -> None:
    worker.run("iptables -A OUTPUT -p tcp --syn -d 10.77.0.11 -j DROP")


def stop_sshd(worker: Machine) -> None:
    worker.stop("sshd")


def mend(worker: Machine) -> None:
    """Undo every way in which a test of this file breaks a machine."""
    worker.run("rm -f /usr/local/sbin/date; iptables -F")
    for interface, _ in TWINS:
        configure(worker, interface)
    if "sshd" not in worker.services:
        worker.start_sshd()


def slow(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("break_it", "subject", "value"),
    [
        (break_mtu, f"path MTU to spark-b over {FIRST}", "9000 bytes do not pass"),
        (break_master_port, "TCP to spark-a at 10.77.0.11, 29501", "no answer within 5 s"),
        slow(break_clock, "clock", "s from this machine's"),
        slow(
            break_every_port, "TCP to spark-a at 10.77.0.11, any free port", "no answer within 5 s"
        ),
        slow(stop_sshd, "reachable", "nothing listens for ssh"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_is_wrong_is_named_in_time_with_its_node_and_a_command(
    program: Program, worker: Machine, break_it: Callable[[Machine], None], subject: str, value: str
) -> None:
    break_it(worker)
    since_s = time.monotonic()
    try:
        found = {item["seen"].split(": ")[1]: item for item in failed(program)}
        said_in_time(f"{subject}: {value}", since_s)
    finally:
        mend(worker)
    assert value in found[subject]["seen"]
    assert found[subject]["fix"]
    assert failed(program) == []
