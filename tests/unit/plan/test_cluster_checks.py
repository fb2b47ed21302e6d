"""Verdicts on two nodes, from what they told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkdeploy import labels
from sparkdeploy.checks import fabric as checks
from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.fabric import FabricFacts, Interface, RdmaDevice, read_facts, twin_key
from sparkdeploy.node.probes import Connection, Packet, Seen
from sparkdeploy.node.ssh import explain
from tests.unit.plan.facts import DOCKER
from tests.unit.plan.test_cluster_launch import sparks

if TYPE_CHECKING:
    from sparkdeploy.checks.fabric import Check

RECORDED = Path(__file__).parent / "recordings"
CONFIG = sparks(2)


def facts(number: int = 1, **changes: object) -> FabricFacts:
    """A Spark as the field describes it (field.md section 3); it was not recorded on one."""
    known = FabricFacts(
        host_name=f"spark-{number}",
        architecture="aarch64",
        uid=1000,
        gid=1000,
        home="/home/ada",
        clock_s=0.0,
        interfaces=(
            Interface("enp1s0f1np1", True, 9000, (f"192.168.177.1{number}/24",)),
            Interface("enP2p1s0f1np1", True, 9000, (f"192.168.178.1{number}/24",)),
            Interface("wlP9s9", True, 1500, ("10.0.0.5/24",)),
        ),
        memory_total_bytes=119 * 2**30,
        memory_available_bytes=112 * 2**30,
        gpu="NVIDIA GB10",
        driver="580.95",
        rdma=(
            RdmaDevice("rocep1s0f1", "enp1s0f1np1", True, 3),
            RdmaDevice("roceP2p1s0f1", "enP2p1s0f1np1", True, 3),
        ),
        home_free_bytes=10**12,
        listening=(22,),
        tools=frozenset({"rsync", "ping", "python3", "sha256sum"}),
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def verdicts(second: FabricFacts, skew_s: float = 0.0) -> list[Check]:
    seen = {"spark-1": Seen(facts(1), 0.0), "spark-2": Seen(second, skew_s)}
    found = (*checks.node_checks(CONFIG, seen), *checks.pair_checks(CONFIG, seen))
    return [check for check in found if check.verdict != "ok"]


def test_two_equal_sparks_have_nothing_to_object() -> None:
    assert verdicts(facts(2)) == []


def changed(name: str, **changes: object) -> tuple[Interface, ...]:
    return tuple(
        replace(item, **changes) if item.name == name else item  # type: ignore[arg-type]
        for item in facts(2).interfaces
    )


@pytest.mark.parametrize(
    ("second", "subject", "value"),
    [
        (facts(2, interfaces=changed("enp1s0f1np1", mtu=1500)), "enp1s0f1np1 MTU", "1500"),
        (facts(2, interfaces=changed("enp1s0f1np1", is_up=False)), "enp1s0f1np1 link", "down"),
        (
            facts(2, interfaces=changed("enP2p1s0f1np1", addresses=())),
            "enP2p1s0f1np1 address",
            "none",
        ),
        (facts(2, interfaces=facts(2).interfaces[:1]), "enP2p1s0f1np1", "no such interface"),
        (
            facts(
                2,
                interfaces=changed(
                    "enP2p1s0f1np1", addresses=("192.168.178.12/24", "192.168.177.112/24")
                ),
            ),
            "subnets",
            "enp1s0f1np1 and enP2p1s0f1np1 are both in 192.168.177.0/24",
        ),
        (facts(2, rdma=facts().rdma[:1]), "RDMA roceP2p1s0f1", "not there"),
        (
            facts(2, rdma=(replace(facts().rdma[0], is_active=False), facts().rdma[1])),
            "RDMA rocep1s0f1",
            "not active",
        ),
        (facts(2, tools=frozenset({"ping", "sha256sum"})), "rsync", "not installed"),
        (facts(2, driver="590.1"), "GPU driver", "590.1"),
        (facts(2, architecture="x86_64"), "architecture", "x86_64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_fault_names_node_value_expectation_and_fix(
    second: FabricFacts, subject: str, value: str
) -> None:
    found = {check.subject: check for check in verdicts(second)}
    assert value in found[subject].value
    assert found[subject].node == "spark-2"
    assert found[subject].expected
    assert found[subject].fix


def test_a_clock_an_hour_off_is_a_fault() -> None:
    (found,) = verdicts(facts(2), skew_s=-3600.0)
    assert (found.subject, found.value) == ("clock", "-3600.0 s from this machine's")


def test_a_twin_that_is_up_and_not_configured_is_a_warning() -> None:
    nodes = tuple(node.model_copy(update={"fabric": node.fabric[:1]}) for node in CONFIG.nodes)
    config = CONFIG.model_copy(update={"nodes": nodes})
    found = list(checks.node_checks(config, {"spark-1": Seen(facts(1), 0.0)}))
    (warning,) = [check for check in found if check.verdict == "warning"]
    assert "enP2p1s0f1np1 is up and not in config.yaml" in warning.value


def test_packets_connections_and_silence_become_checks() -> None:
    (lost,) = checks.packet_checks([Packet("a", "b", "eth1", 9000, arrived=False)])
    assert (lost.verdict, lost.value) == ("failed", "9000 bytes do not pass")
    (refused,) = checks.connection_checks([Connection("b", "a", "10.0.0.1", 29501, "refused")])
    assert (refused.verdict, refused.subject) == ("failed", "TCP to a at 10.0.0.1, 29501")
    (silent,) = checks.unreachable_checks({"b": NodeError("b: gone", hint="wake it")})
    assert (silent.node, silent.value, silent.fix) == ("b", "gone", "wake it")
    old, new = checks.version_checks({"a": "28.3", "b": "20.10.24"})
    assert (old.verdict, new.verdict) == ("ok", "warning")


def test_memory_and_gpu_are_asked_of_every_node() -> None:
    seen = {"a": Seen(facts(1), 0.0), "b": Seen(facts(2, gpu=None), 0.0)}
    enough, little = checks.memory_checks(113 * 2**30, seen, {"a": 2 * 2**30})
    assert (enough.verdict, little.verdict) == ("ok", "failed")
    assert little.describe() == "b: memory: 112.0 GiB available, expected 113.0 GiB"
    engine = replace(DOCKER, has_nvidia_runtime=False)
    found = [item for item in checks.gpu_checks({"b": engine}, seen) if item.verdict == "failed"]
    assert [(item.node, item.subject) for item in found] == [("b", "GPU"), ("b", "docker runtime")]


@pytest.mark.parametrize(
    ("nodes", "state", "refused"),
    [
        ("spark-3,spark-2", "running", True),
        ("spark-3,spark-2", "exited", False),
        ("spark-1,spark-2", "running", False),
        (None, "running", False),
    ],
)
def test_a_worker_of_another_head_is_not_taken(
    nodes: str | None, state: str, refused: bool
) -> None:
    marks = {labels.DEPLOYMENT: "main", **({labels.NODES: nodes} if nodes else {})}
    there = ContainerFact("c", "sparkdeploy-main", "i", state, marks)
    found = tuple(checks.owner_checks("spark-1", {"spark-1": (), "spark-2": (there,)}))
    assert bool(found) == refused
    for check in found:
        assert "spark-2: in use: spark-3's cluster deployment main runs there" in check.describe()
        assert check.fix == "on spark-3: sparkdeploy down main"


def test_the_recorded_facts_of_a_machine_are_read() -> None:
    found = read_facts((RECORDED / "facts-namespace.txt").read_text())
    assert found.host_name == "spark-a"
    assert found.interface("enp1s0f1np1") == Interface(
        "enp1s0f1np1", True, 9000, ("10.77.0.11/24",)
    )
    assert found.gpu is None
    assert 22 in found.listening
    assert {"rsync", "ping", "python3", "sha256sum"} <= found.tools


def test_facts_of_a_spark_tell_rdma_devices_and_where_roce_v2_is() -> None:
    found = read_facts((RECORDED / "facts-spark.txt").read_text())
    assert (found.gpu, found.driver) == ("NVIDIA GB10", "580.95.05")
    assert found.rdma == (
        RdmaDevice("rocep1s0f1", "enp1s0f1np1", True, 3),
        RdmaDevice("roceP2p1s0f1", "enP2p1s0f1np1", False, None),
    )


def test_facts_that_broke_off_are_refused() -> None:
    with pytest.raises(ValueError, match="did not tell its"):
        read_facts("== who\nspark\n")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("enp1s0f1np1", "p1s0f1"),
        ("enP2p1s0f1np1", "p1s0f1"),
        ("rocep1s0f0", "p1s0f0"),
        ("roceP2p1s0f0", "p1s0f0"),
        ("enP7s7", None),
        ("wlP9s9", None),
        ("docker0", None),
    ],
)
def test_twins_are_known_by_name(name: str, key: str | None) -> None:
    assert twin_key(name) == key


@pytest.mark.parametrize(
    ("said", "cause", "fix"),
    [
        ("Host key verification failed.", "not known here", "ssh ada@b true"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "another one", "ssh-keygen -R b"),
        ("ada@b: Permission denied (publickey).", "password or a key", "ssh-copy-id ada@b"),
        ("ssh: connect to host b port 22: Connection refused", "nothing listens", "systemctl"),
        ("ssh: Could not resolve hostname b: Name or service not known", "not known", "config"),
        ("ssh: connect to host b port 22: No route to host", "No route to host", "is it on"),
        ("", "did not answer", "is it on"),
    ],
)
def test_what_ssh_said_becomes_a_cause_and_a_command(said: str, cause: str, fix: str) -> None:
    found = explain(said, "b", "ada")
    assert cause in found.cause
    assert fix in found.fix
