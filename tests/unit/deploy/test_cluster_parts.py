"""The parts of a cluster that decide nothing alone: listings, hashes, notes, discovery."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from sparkdeploy.checks import survey
from sparkdeploy.deploy import lifecycle, prepare
from sparkdeploy.deploy.prepare import compare
from sparkdeploy.errors import CheckpointError, NodeError, UnhealthyError
from sparkdeploy.node import fabric as node_fabric
from sparkdeploy.node.cluster import FabricPort, read_cluster
from sparkdeploy.node.fabric import Connection
from sparkdeploy.node.node import Node, Nodes
from sparkdeploy.node.ssh import SshLink
from sparkdeploy.node.tree import Ledger, hashes, list_tree
from sparkdeploy.plan.observe import PathMapping, SyncTree, compare_tree, mapping_to, sync_trees
from sparkdeploy.plan.observed import Observed, ObservedNode
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep.cluster import Host, section
from tests.fakes.containers import container
from tests.fakes.fabric import adapters_of, fabric_fact, node_fact, spark, sparks
from tests.fakes.machines import launches
from tests.fakes.plans import model_fact
from tests.fakes.two_nodes import BOTH, NEW, OLD, Pair, part
from tests.unit.conftest import GiveProgram

HERE = Node("spark-1", spark(1))
ASIDE = PathMapping(fabric_fact(), fabric_fact(2))


@pytest.mark.parametrize(
    ("name", "target"), [("a\tb", "x"), ("a\nb", "x"), ("a", "\n"), ("a", "\t")]
)
def test_a_name_that_no_list_can_hold_is_refused(tmp_path: Path, name: str, target: str) -> None:
    (tmp_path / name).symlink_to(target)
    with pytest.raises(NodeError, match=f"spark-1.*{tmp_path}/a") as refused:
        list_tree(HERE, tmp_path)
    assert "rename it on spark-1" in (refused.value.hint or "")


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(
    tmp_path: Path, give_program: GiveProgram
) -> None:
    assert list_tree(HERE, tmp_path / "missing") == {}
    give_program("find", "echo \"find: '$1/deep': Permission denied\" >&2\nexit 1")
    with pytest.raises(NodeError, match=r"spark-1: .*/models cannot be read whole: .*/deep"):
        list_tree(HERE, tmp_path / "models")


def test_a_file_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "weights"
    file.parent.mkdir()
    file.write_bytes(b"one")

    def digest() -> str:
        entries = list_tree(HERE, file.parent)
        return hashes(HERE, file.parent, entries, Ledger(tmp_path, "n"))["weights"]

    assert digest() == hashlib.sha256(b"one").hexdigest()
    ledger = tmp_path / "cluster" / "hashes-n.json"
    ledger.write_text(ledger.read_text().replace(digest(), "remembered"))
    assert digest() == "remembered"
    before = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest() == hashlib.sha256(b"two").hexdigest()


def test_a_difference_is_found_by_content(tmp_path: Path) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_bytes(b"x")
    (tmp_path / "here" / "other").write_bytes(b"1")
    (tmp_path / "there" / "other").write_bytes(b"2")
    (tmp_path / "here" / "missing").write_bytes(b"123")
    tree = SyncTree(tmp_path / "here", tmp_path / "there", ("missing", "other", "same"))
    differing, changed = compare(tree, HERE, Node("spark-2", spark(2)), load_settings())
    sizes = {path: entry.size_bytes for path, entry in differing.items()}
    assert (sizes, changed) == ({"missing": 3, "other": 1}, ["other"])


STORED = "c1/c1" + "0" * 62


def cached(cache: Path, content: bytes, *, is_shared: bool) -> Path:
    """A repository of one file, whose blob lies in its folder or in the store beside it."""
    root = cache / "models--lab--twin"
    (root / "snapshots" / "1").mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "snapshots" / "1" / "weights").symlink_to("../../blobs/etag")
    place = cache / "blobs" / STORED if is_shared else root / "blobs" / "etag"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    if is_shared:
        (root / "blobs" / "etag").symlink_to(f"../../blobs/{STORED}")
    return root


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_weights_are_the_same_wherever_a_cache_keeps_them(
    tmp_path: Path, here: bool, there: bool
) -> None:
    ours = cached(tmp_path / "here", b"123", is_shared=here)
    theirs = cached(tmp_path / "there", b"123", is_shared=there)
    (tree,) = sync_trees((model_fact(treated=False, root=ours, files="snapshots/1"),), None, ASIDE)
    tree = replace(tree, there=theirs)
    worker = Node("spark-2", spark(2))
    assert compare(tree, HERE, worker, load_settings()) == ({}, [])
    held = compare_tree(tree, HERE, worker)
    stored = tmp_path / "there" / "blobs" / STORED
    assert (held.missing_bytes, held.shared) == (0, (stored,) if there else ())
    (stored if there else theirs / "blobs" / "etag").write_bytes(b"12")
    differing, changed = compare(tree, HERE, worker, load_settings())
    assert [*differing] == changed == ["blobs/etag"]
    (entry,) = differing.values()
    assert (entry.size_bytes, entry.is_shared) == (3, here)
    assert compare_tree(tree, HERE, worker).missing_bytes == 3


def test_a_node_mounts_what_its_own_links_lead_to(tmp_path: Path) -> None:
    own, theirs = tmp_path / "blobs" / STORED, Path("/home/bob/hub/blobs") / STORED
    model = model_fact(root=Path("/home/ada/hub/models--lab--twin"), shared=(own,))
    root = Path("/home/bob/hub/models--lab--twin")
    mapping = PathMapping(fabric_fact(), fabric_fact(2, home="/home/bob", uid=1001, gid=1002))
    assert mapping.model(model, {root: (theirs,)}).shared == (theirs,)
    assert mapping.model(model, {}).shared == ()


def test_paths_below_the_home_move_with_it_and_owners_with_the_user() -> None:
    worker = fabric_fact(2, home="/home/bob", uid=1001, gid=1002)
    assert PathMapping(fabric_fact(), worker).path(Path("/home/ada/x")) == Path("/home/bob/x")
    assert PathMapping(fabric_fact(), worker).path(Path("/data/x")) == Path("/data/x")
    moved = PathMapping(fabric_fact(), worker).model(model_fact(), {})
    assert moved.root.is_relative_to("/home/bob")
    assert (moved.owner_uid, moved.owner_gid) == (1001, 1002)
    root = PathMapping(fabric_fact(), replace(worker, uid=0)).model(model_fact(), {})
    assert root.owner_uid == 1000


def test_discovery_writes_a_section_that_can_be_read_back() -> None:
    found = (
        Host("192.168.177.11", fabric_fact(1)),
        Host("192.168.177.12", fabric_fact(2)),
        Host("192.168.177.1", None, "nvidia-smi names no GPU"),
    )
    config = read_cluster(yaml.safe_load(section(found, "ada"))["cluster"], "stdout")
    assert [node.name for node in config.nodes] == ["spark-1", "spark-2"]
    assert [port.rdma for port in config.nodes[1].fabric] == list(adapters_of(2))


def test_every_port_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(4)

    def to_here(here: Node, workers: list[Node], port: int) -> list[Connection]:
        together.wait(60)
        return [Connection(worker.name, here.name, "", port) for worker in workers]

    def to_worker(here: Node, worker: Node) -> Connection:
        together.wait(60)
        return Connection(here.name, worker.name, "", 0)

    monkeypatch.setattr(node_fabric, "connect_to_here", to_here)
    monkeypatch.setattr(node_fabric, "connect_to_worker", to_worker)
    there = Node("spark-2", spark(2), cast("SshLink", object()))
    found = survey.connections(Nodes(HERE, (there,), config=sparks(2)), [there])
    assert [item.port for item in found] == [29501, 6379, 0, 0]


def test_two_workers_share_one_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """As two listeners on one port the second worker was refused when the first had connected."""
    both = threading.Barrier(2)

    def connect_from(worker: Node, address: str, port: int) -> str:
        both.wait(60)
        socket.create_connection((address, port), 5).close()
        return ""

    monkeypatch.setattr(node_fabric, "_connect_from", connect_from)
    monkeypatch.setattr(FabricPort, "ip", "127.0.0.1")
    workers = [Node(f"spark-{number}", spark(number)) for number in (2, 3)]
    found = node_fabric.connect_to_here(HERE, workers, 0)
    assert [(item.source, item.error) for item in found] == [("spark-2", ""), ("spark-3", "")]


def test_a_listener_that_ends_as_it_is_tried_is_no_closed_door(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deployment that had the port was just ended: nobody listens when a worker connects."""
    ending = socket.create_server(("127.0.0.1", 0))
    refusals: list[str] = []

    def connect_from(_worker: Node, address: str, port: int) -> str:
        ending.close()
        try:
            socket.create_connection((address, port), 5).close()
        except ConnectionRefusedError as error:
            refusals.append(str(error))
            return str(error)
        return ""

    monkeypatch.setattr(node_fabric, "_connect_from", connect_from)
    monkeypatch.setattr(FabricPort, "ip", "127.0.0.1")
    port = ending.getsockname()[1]
    (found,) = node_fabric.connect_to_here(HERE, [Node("spark-2", spark(2))], port)
    assert (found.error, len(refusals)) == ("", 1)


def test_what_differs_right_after_it_was_sent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = SyncTree(Path("/m"), Path("/m"), ("a",))
    sent: list[object] = []

    def send(*words: object) -> int:
        sent.append(words[1])
        return 1

    monkeypatch.setattr(prepare, "compare", lambda *_: ({"a": None}, []))
    monkeypatch.setattr(prepare, "_send_files", send)
    done = SimpleNamespace(exit_code=0)
    worker: Any = SimpleNamespace(name="spark-2", script=lambda _text: done)
    head: Any = SimpleNamespace(name="spark-1")
    with pytest.raises(CheckpointError, match="spark-2: /m/a is not what spark-1 has"):
        prepare.send_tree(tree, head, worker, load_settings())
    assert sent == [{"a": None}]


def test_paths_of_the_head_become_those_of_the_other_node_and_not_the_reverse() -> None:
    fabrics = (fabric_fact(1), fabric_fact(2, home="/home/bob", uid=7), None)
    nodes = [ObservedNode(node_fact(number, it)) for number, it in enumerate(fabrics, start=1)]
    nodes[2] = replace(nodes[2], facts=replace(nodes[2].facts, fabric=None))
    observed = Observed(tuple(nodes), "registry")
    mapping = mapping_to(observed, "spark-2")
    assert mapping is not None
    assert mapping.path(Path("/home/ada/hub/m")) == Path("/home/bob/hub/m")
    assert mapping_to(observed, "spark-3") is None
    assert mapping_to(observed, "spark-4") is None


OLD_IS_BACK = {f"{OLD}/{NEW}": "running"}


def test_a_node_that_is_gone_keeps_its_note_and_is_settled_later(
    pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    pair.half_replace()
    pair.worker.breaks_with = NodeError("docker is gone")
    with pytest.raises(NodeError, match="its other ranks are not: spark-2: docker is gone"):
        lifecycle.roll_back("main")
    assert "`sparkdeploy rollback main` again when spark-2 is back" in capsys.readouterr().err
    assert (pair.head.states, pair.noted) == (OLD_IS_BACK, BOTH)
    pair.worker.breaks_with = None
    assert lifecycle.roll_back("main").action == "reverted"
    assert pair.worker.states == OLD_IS_BACK


def test_a_whole_cluster_without_kept_containers_has_no_way_back(pair: Pair) -> None:
    pair.note(*BOTH)
    for engine, rank in ((pair.head, "0"), (pair.worker, "1")):
        engine.facts[NEW] = part(NEW, "one", rank=rank)
    assert lifecycle.roll_back("main").action == "nothing"
    assert pair.head.states == pair.worker.states == {f"{NEW}/{NEW}": "running"}


@pytest.mark.parametrize("before", [(), BOTH])
def test_a_launch_that_fails_leaves_the_note_as_it_was(pair: Pair, before: tuple[str, ...]) -> None:
    pair.note(*before)
    pair.head.facts["old"] = part(NEW, "old") if before else container(NEW)
    pair.head.facts["old"] = replace(pair.head.facts["old"], container_id="old")
    seen: list[set[str]] = []

    def fail(_parts: object) -> None:
        seen.append(launches(pair.lab))
        raise UnhealthyError("it died")

    pair.lab.wait = fail
    with pytest.raises(UnhealthyError):
        pair.lab.up()
    assert [len(launches) for launches in seen] == [1]
    assert (pair.head.states, pair.worker.states) == ({f"old/{NEW}": "running"}, {})
    assert pair.noted == before
