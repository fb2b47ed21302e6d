"""Verdicts on two nodes, from what they told."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdeploy import labels, shell
from sparkdeploy.checks import survey as checks
from sparkdeploy.checks.report import Finding, Verdict
from sparkdeploy.errors import NodeError
from sparkdeploy.node import fabric
from sparkdeploy.node.cluster import ClusterNode
from sparkdeploy.node.container import ContainerFact, ImageFact
from sparkdeploy.node.fabric import (
    SCRIPT,
    Connection,
    FabricFact,
    Interface,
    Packet,
    measure_rate,
    parse_fabric,
    read_fabric,
    send_full_size,
    twin_key,
)
from sparkdeploy.node.facts import GpuFact, NodeFact
from sparkdeploy.node.node import Node, Nodes
from sparkdeploy.node.ssh import explain
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.make import make_plan
from sparkdeploy.plan.observed import Observed, ObservedNode
from sparkdeploy.plan.preflight import disk, refuse_to_prepare
from sparkdeploy.plan.steps import Needs, Plan, make_topology
from sparkdeploy.recipe.load import Library, load_recipe
from tests.fakes.fabric import fabric_fact, interfaces_of, node_fact, sparks, two_node_plan
from tests.fakes.plans import DOCKER, FOLDERS, made_stages, model_fact

RECORDED = Path(__file__).parent / "recordings"
CONFIG = sparks(2)


def verdicts(second: FabricFact | NodeFact) -> list[Finding]:
    other = node_fact(2, second) if isinstance(second, FabricFact) else second
    seen = {"spark-1": node_fact(1), "spark-2": other}
    found = (*checks.node_checks(CONFIG.nodes, seen), *checks.pair_checks(CONFIG.nodes, seen))
    return [check for check in found if check.verdict is not Verdict.OK]


def test_two_equal_sparks_have_nothing_to_object() -> None:
    assert verdicts(fabric_fact(2, clock_skew_s=-5.0)) == []


FIRST, SECOND = interfaces_of(2)
ADAPTERS = fabric_fact(2).rdma


def changed(name: str, **changes: object) -> FabricFact:
    """The second Spark, with one interface like this."""
    seen = fabric_fact(2).interfaces
    return fabric_fact(
        2,
        interfaces=tuple(
            replace(item, **changes) if item.name == name else item  # type: ignore[arg-type]
            for item in seen
        ),
    )


@pytest.mark.parametrize(
    ("second", "subject", "value"),
    [
        (changed(FIRST, mtu=1500), f"{FIRST} MTU", "1500"),
        (changed(FIRST, is_up=False), f"{FIRST} link", "down"),
        (changed(SECOND, addresses=()), f"{SECOND} address", "none"),
        (fabric_fact(2, interfaces=fabric_fact(2).interfaces[:1]), SECOND, "no such interface"),
        (
            changed(SECOND, addresses=("192.168.178.12/24", "192.168.177.112/24")),
            "subnets",
            f"{FIRST} and {SECOND} are both in 192.168.177.0/24",
        ),
        (fabric_fact(2, rdma=ADAPTERS[:1]), f"RDMA {ADAPTERS[1].name}", "not there"),
        (
            fabric_fact(2, rdma=(replace(ADAPTERS[0], is_active=False), ADAPTERS[1])),
            f"RDMA {ADAPTERS[0].name}",
            "not active",
        ),
        (fabric_fact(2, tools=frozenset({"ping", "sha256sum"})), "rsync", "not installed"),
        (node_fact(2, gpu=GpuFact("GB10", driver_version="590.1")), "GPU driver", "590.1"),
        (node_fact(2, architecture="x86_64"), "architecture", "x86_64"),
        (fabric_fact(2, clock_skew_s=5.1), "clock", "+5.1 s from this machine's"),
        (fabric_fact(2, clock_skew_s=-5.1), "clock", "-5.1 s from this machine's"),
    ],
)
def test_each_fault_names_node_value_expectation_and_fix(
    second: FabricFact | NodeFact, subject: str, value: str
) -> None:
    (found,) = [it for it in verdicts(second) if it.seen.startswith(f"spark-2: {subject}: ")]
    assert value in found.seen
    assert found.node == "spark-2"
    assert ", expected " in found.seen
    assert found.fix


def test_a_twin_that_is_up_and_not_configured_is_a_warning() -> None:
    nodes = tuple(node.model_copy(update={"fabric": node.fabric[:1]}) for node in CONFIG.nodes)
    config = CONFIG.model_copy(update={"nodes": nodes})
    found = list(checks.node_checks(config.nodes, {"spark-1": node_fact(1)}))
    (warning,) = [check for check in found if check.verdict is Verdict.WARN]
    assert "enP2p1s0f1np1 is up and not in config.yaml" in warning.seen


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "arrived"),
    [
        (0, "2 packets transmitted, 2 received", "", True),
        (1, "2 packets transmitted, 0 received", "", False),
        (127, "", "sh: 1: ping: not found", None),
        (126, "", "sh: 1: ping: Permission denied", None),
        (2, "", "ping: socket: Operation not permitted", None),
        (1, "", "ping: unrecognized option: M", None),
        (2, "", "ping: connect: Network is unreachable", None),
        (1, "", "", None),
    ],
)
def test_only_a_packet_that_was_sent_and_lost_says_something_of_the_mtu(
    monkeypatch: pytest.MonkeyPatch, code: int, stdout: str, stderr: str, arrived: bool | None
) -> None:
    def run(_node: Node, text: str) -> shell.Completed:
        asked.append(text)
        return shell.Completed((), code, stdout, stderr)

    asked: list[str] = []
    monkeypatch.setattr(Node, "script", run)
    nodes = [Node(entry.name, entry) for entry in CONFIG.nodes]
    packet = send_full_size(nodes[0], nodes[1], 1, 9000)
    assert packet.interface == CONFIG.nodes[0].fabric[1].interface
    assert asked[0].endswith(" -s 8972 -I 192.168.178.11 192.168.178.12")
    assert packet.arrived is arrived
    assert packet.failure == (stderr or ("" if arrived is not None else "ping does not run"))


@pytest.mark.parametrize(
    ("now", "most", "verdict"),
    [(128.0, 128.0, Verdict.OK), (32.0, 128.0, Verdict.WARN), (None, None, None), (8.0, 0.0, None)],
)
def test_a_port_with_few_or_slow_lanes_is_worth_a_look(
    now: float | None, most: float | None, verdict: Verdict | None
) -> None:
    first, *others = fabric_fact().rdma
    slow = replace(first, pcie_gt_s=now, pcie_most_gt_s=most)
    fact = node_fact(1, fabric_fact(rdma=(slow, *others)))
    found = checks.node_checks(CONFIG.nodes, {"spark-1": fact})
    judged = [check.verdict for check in found if check.check == "cluster.pcie"]
    assert judged == ([verdict] if verdict else [])


def test_a_link_is_measured_and_held_against_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = [{"interface": "none", "address": "192.0.2.1/24"}]
    ports += [{"interface": "lo", "address": "127.0.0.1/8"}]
    one, other = (
        Node(name, ClusterNode.model_validate({"name": name, "ssh": name, "fabric": ports}))
        for name in ("a", "b")
    )
    sent = fabric.SEND.replace("while time.monotonic() < end:", "for _ in range(2):")
    monkeypatch.setattr(fabric, "SEND", sent + "    time.sleep(2)\n")
    rate = measure_rate(one, other, 1, 10)
    assert rate.bytes_s is not None
    # 2 MiB in about two seconds: in bits or in kB it would be another number.
    assert 2**14 < rate.bytes_s <= 2**22
    slow, fast, unknown, failed = checks.rate_checks(
        replace(rate, bytes_s=count, speed_mbit_s=speed)
        for count, speed in ((1_600_000_000, 200_000), (4 * 10**9, 200_000), (1, None), (None, 1))
    )
    assert (slow.verdict, fast.verdict) == (Verdict.WARN, Verdict.OK)
    assert "12.8 Gb/s, expected 20 Gb/s and more" in slow.seen
    assert (unknown.verdict, failed.verdict) == (Verdict.OK, Verdict.NOT_SEEN)


def test_packets_connections_and_silence_become_checks() -> None:
    (lost,) = checks.packet_checks([Packet("a", "b", "eth1", 9000, arrived=False)])
    assert lost.verdict is Verdict.FAIL
    assert ": 9000 bytes do not pass, expected" in lost.seen
    (unknown,) = checks.packet_checks([Packet("a", "b", "eth1", 9000, arrived=None)])
    assert unknown.verdict is Verdict.NOT_SEEN
    assert "iputils-ping" in (unknown.fix or "")
    (refused,) = checks.connection_checks([Connection("b", "a", "10.0.0.1", 29501, "refused")])
    assert refused.verdict is Verdict.FAIL
    assert refused.seen.startswith("b: TCP to a at 10.0.0.1, 29501: refused")
    (silent,) = checks.unreachable_checks({"b": NodeError("b: gone", hint="wake it")})
    assert (silent.node, silent.fix) == ("b", "wake it")
    assert silent.seen.startswith("b: reachable: gone, expected ")
    old, new = checks.version_checks({"a": "28.3", "b": "20.10.24"})
    assert (old.verdict, new.verdict) == (Verdict.OK, Verdict.WARN)


@pytest.mark.parametrize(
    ("first", "second", "third", "odd", "like"),
    [
        ("aarch64", "x86_64", "aarch64", "spark-2", "spark-1"),
        ("x86_64", "aarch64", "aarch64", "spark-1", "spark-2"),
        ("x86_64", "x86_64", "aarch64", "spark-3", "spark-1"),
    ],
)
def test_the_node_that_is_unlike_most_is_the_one_to_leave_out(
    first: Any, second: Any, third: Any, odd: str, like: str
) -> None:
    kinds = dict(zip(("spark-1", "spark-2", "spark-3"), (first, second, third), strict=True))
    seen = {
        name: node_fact(number, architecture=kinds[name])
        for number, name in enumerate(sorted(kinds), 1)
    }
    found = [
        it for it in checks.pair_checks(sparks(3).nodes, seen) if it.check == "cluster.architecture"
    ]
    (failed,) = [it for it in found if it.verdict is Verdict.FAIL]
    assert failed.seen == (
        f"{odd}: architecture: {kinds[odd]}, and {like} is {kinds[like]}, "
        "expected one kind, for one image serves all nodes"
    )
    assert failed.fix is not None
    assert failed.fix.startswith(f"leave {odd} out: ")
    assert {it.node for it in found} == kinds.keys() - {like}


def test_a_mixed_cluster_is_refused_before_anything_is_built_or_sent(shipped: Library) -> None:
    mixed = node_fact(2, architecture="x86_64")
    told = tuple(checks.pair_checks(CONFIG.nodes, {"spark-1": node_fact(1), "spark-2": mixed}))
    made = two_node_plan(shipped, ObservedNode(mixed), checks=told)
    with pytest.raises(NodeError) as caught:
        refuse_to_prepare(made)
    assert "spark-2: architecture: x86_64, and spark-1 is aarch64" in (caught.value.detail or "")
    assert "fix: leave spark-2 out" in (caught.value.detail or "")


def said(made: Plan) -> str:
    return "\n".join(problem.seen for problem in made.problems)


def with_engine(shipped: Library, proof: str, *settings: str) -> Plan:
    """A plan of two nodes where the engine's image is there and told this at its build."""
    resolved = load_recipe(shipped, "v2", settings)
    stages = made_stages(resolved.engine)
    marks = {**stages[1].labels(), labels.PROOF: proof}
    images = {stages[1].tag: ImageFact("sha256:1", (stages[1].tag,), marks, 1)}
    seen = Observed(
        (ObservedNode(node_fact(1), images=images), ObservedNode(node_fact(2))),
        "registry",
        model_fact(),
    )
    return make_plan(
        resolved,
        seen,
        stages=stages,
        deployment=Deployment("main"),
        folders=FOLDERS,
        topology=make_topology(resolved, CONFIG, "spark-1"),
    )


def test_an_image_without_rdma_is_refused_before_anything_is_sent(shipped: Library) -> None:
    lacks = '{"rdma_missing": {"libibverbs.so.1": "cannot open libibverbs.so.1"}}'
    (found,) = [it for it in with_engine(shipped, lacks).problems if it.check == "docker.rdma"]
    assert found.seen == "engine cuda-0.25 cannot reach RDMA adapters: cannot open libibverbs.so.1"
    assert "libibverbs1, ibverbs-providers" in str(found.fix)
    for proof in ('{"rdma_missing": {}}', "{}", "damaged", '{"rdma_missing": 7}'):
        assert "RDMA adapters" not in said(with_engine(shipped, proof))
    assert "--set 'backends.warn_only=[transport]'" in str(found.fix)
    allowed = with_engine(shipped, lacks, "backends.warn_only=[transport]")
    assert "RDMA adapters" not in said(allowed)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("backends.warn_only=[transport]", "lets NCCL fall back to sockets"),
        ("serve.env.NCCL_NET=Socket", "makes NCCL use sockets"),
        ("serve.env.NCCL_IB_DISABLE='1'", "makes NCCL use sockets"),
    ],
)
def test_a_recipe_that_allows_sockets_is_told_what_it_loses(
    shipped: Library, setting: str, words: str
) -> None:
    found = with_engine(shipped, "{}", setting).warnings
    (warning,) = [item for item in found if item.check == "network.transport"]
    assert words in warning.seen
    assert "several times as long" in warning.seen
    plain = with_engine(shipped, "{}").warnings
    assert not [item for item in plain if item.check == "network.transport"]


def test_a_worker_needs_room_for_the_engine_twice_and_for_the_weights(shipped: Library) -> None:
    node = node_fact(2, docker_free_bytes=15 * 10**8, data_free_bytes=10**9)
    made = two_node_plan(shipped, ObservedNode(node, missing_bytes=10**9 + 1))
    planned = replace(made.nodes[1], needs=Needs(10**9, 0, 0))
    assert [item.seen for item in disk(made, planned, made.observed.nodes[1])] == [
        "disk: loading the engine image takes 2.0 GB and /var/lib/docker has 1.5 GB free",
        "disk: 1.0 GB of weights are missing, and their disk has 1.0 GB free",
    ]


def test_each_node_has_the_gid_of_its_own_adapter() -> None:
    odd = fabric_fact(2, rdma=(replace(ADAPTERS[0], gid_index=5), ADAPTERS[1]))
    first, *others = (Node(entry.name, entry) for entry in CONFIG.nodes)
    nodes = Nodes(first, tuple(others), config=CONFIG)
    found = checks.Survey({"spark-1": node_fact(1), "spark-2": node_fact(2, odd)})
    assert found.gid_indexes(nodes) == {"spark-1": 3, "spark-2": 5}


def test_memory_and_gpu_are_asked_of_every_node(shipped: Library) -> None:
    little = node_fact(2, memory_available_bytes=50 * 2**30)
    assert "spark-2: memory: " in said(two_node_plan(shipped, ObservedNode(little)))
    assert "spark-2: " not in said(two_node_plan(shipped, ObservedNode(node_fact(2))))
    without = node_fact(2, gpu=None, docker=replace(DOCKER, has_nvidia_runtime=False))
    assert "spark-2: " in said(two_node_plan(shipped, ObservedNode(without)))


@pytest.mark.parametrize(
    ("nodes", "state", "owner"),
    [
        ("spark-3,spark-2", "running", "spark-3"),
        ("spark-3,spark-2", "exited", "spark-3"),
        ("spark-1,spark-2", "running", None),
        (None, "running", "spark-2"),
    ],
)
def test_what_another_machine_deployed_is_not_taken(
    shipped: Library, nodes: str | None, state: str, owner: str | None
) -> None:
    several_nodes = {labels.NODES: nodes, labels.RANK: "1"} if nodes else {}
    marks = {labels.DEPLOYMENT: "main", **several_nodes}
    there = ContainerFact("c", "sparkdeploy-main", "i", state, marks)
    made = two_node_plan(shipped, ObservedNode(node_fact(2), containers=(there,)))
    found = [item for item in made.problems if item.check == "deployments.owner"]
    assert len(found) == bool(owner)
    for item in found:
        kind = "cluster" if nodes else "own"
        does = "runs" if state == "running" else "is stopped"
        assert f"spark-2: in use: {owner}'s {kind} deployment main {does} there" in item.seen
        assert str(item.fix).startswith(f"on {owner}: sparkdeploy down main")


def test_the_recorded_facts_of_a_machine_are_read() -> None:
    found = read_fabric((RECORDED / "facts-namespace.txt").read_text())
    assert found.host_name == "spark-a"
    assert found.interface("enp1s0f1np1") == Interface(
        "enp1s0f1np1", True, 9000, ("10.77.0.11/24",)
    )
    assert {"rsync", "ping", "python3", "sha256sum"} <= found.tools


def test_speed_and_lanes_of_a_port_are_read_at_both_ends_of_its_link() -> None:
    """The card could take 16 lanes, and the machine has 4 for it: those are all there can be."""
    found = read_fabric((RECORDED / "facts-spark.txt").read_text())
    device = found.rdma_device("rocep1s0f1")
    assert device is not None
    assert (device.pcie_gt_s, device.pcie_most_gt_s) == (128.0, 128.0)
    assert (device.interface, device.is_active, device.gid_index) == ("enp1s0f1np1", True, 3)
    twin = found.rdma_device("roceP2p1s0f1")
    assert twin is not None
    assert (twin.is_active, twin.gid_index) == (False, None)
    assert [item.name for item in found.interfaces if item.is_up] == ["enp1s0f1np1"]
    speeds = {item.name: item.speed_mbit_s for item in found.interfaces}
    assert speeds["enp1s0f1np1"] == 200_000
    assert {speed for name, speed in speeds.items() if name != "enp1s0f1np1"} == {None}


@pytest.mark.parametrize(
    ("clock_s", "skew_s"), [(95.0, -5.0), (100.0, 0.0), (103.5, 0.0), (104.0, 0.0), (110.0, 6.0)]
)
def test_a_clock_is_wrong_by_what_its_answer_does_not_explain(
    monkeypatch: pytest.MonkeyPatch, clock_s: float, skew_s: float
) -> None:
    text = (RECORDED / "facts-spark.txt").read_text().replace("1795000000.123456789", str(clock_s))
    monkeypatch.setattr(Node, "script", lambda *_: shell.Completed((), 0, text, ""))
    looks_s = iter((100.0, 104.0))
    monkeypatch.setattr(fabric, "time", SimpleNamespace(time=lambda: next(looks_s)))
    assert fabric.look_at_fabric(Node("spark-1")).clock_skew_s == skew_s


def test_a_machine_without_a_home_in_its_environment_tells_the_one_of_its_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    done = shell.run(("sh", "-c", SCRIPT))
    assert parse_fabric("spark-2", done).home == pwd.getpwuid(os.getuid()).pw_dir


@pytest.mark.parametrize(
    ("who", "addresses"),
    [("spark\n0\n0", "[]"), ("a\n0\n0\n/root", "{"), ("a\n0\n0\n/root", "[1]")],
)
def test_what_a_machine_does_not_tell_is_its_fault_and_not_ours(who: str, addresses: str) -> None:
    text = f"== who\n{who}\n== clock\n1\n== addresses\n{addresses}\n== tools\n"
    with pytest.raises(NodeError, match="spark-2: what it says of its network"):
        parse_fabric("spark-2", shell.Completed((), 0, text, ""))


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
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @",
            "host key has changed",
            "ssh-keygen -R b",
        ),
        ("ada@b: Permission denied (publickey).", "password or a key", "ssh-copy-id ada@b"),
        ("ssh: connect to host b port 22: Connection refused", "nothing listens", "systemctl"),
        (
            "ssh: Could not resolve hostname b: Name or service not known",
            "not known",
            "check the name, or give its address: `ssh:` in config.yaml, or HostName in",
        ),
        ("ssh: connect to host b port 22: No route to host", "No route to host", "is it on"),
        ("", "did not answer", "is it on"),
    ],
)
def test_what_ssh_said_becomes_a_cause_and_a_command(said: str, cause: str, fix: str) -> None:
    found = explain(said, "b", "ada")
    assert cause in found[0]
    assert fix in found[1]
