"""The readers against real servers, real programs and an engine without Docker."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdeploy import shell
from sparkdeploy.errors import NodeError
from sparkdeploy.monitor import readers
from sparkdeploy.monitor.readers import SILENCE_S, EngineReader, NodeReader, ServerReader, heard
from sparkdeploy.monitor.snapshot import (
    DeploymentState,
    NodeSample,
    ServerSample,
    WatchSnapshot,
    snapshot_json,
    snapshot_of,
)
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.node import Node, Nodes
from sparkdeploy.server.client import ServedModel
from sparkdeploy.settings import Settings, load_settings
from tests.engine.conftest import until
from tests.fakes.containers import FakeContainers, container
from tests.fakes.http_server import TableServer, serving
from tests.unit.monitor.snapshots import NOW
from tests.unit.monitor.snapshots import snapshot as made_snapshot

pytestmark = pytest.mark.outside
LIMITS = json.dumps({"limits": {"memory_floor_gib": 4.0}})


def counts(server: TableServer, tokens: int, status: int = 200) -> None:
    """Let the server answer /metrics with that many tokens."""
    server.answers["/metrics"] = (status, f"vllm:generation_tokens_total {tokens}\n")


@contextlib.contextmanager
def counting() -> Iterator[TableServer]:
    made = TableServer()
    counts(made, 5)
    with serving(made):
        yield made


@pytest.fixture
def server() -> Iterator[TableServer]:
    with counting() as running:
        yield running


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (readers.Reader, ServerReader, EngineReader, readers.PartsReader):
        monkeypatch.setattr(kind, "every_s", 0.02)
    monkeypatch.setattr(readers, "RETRY_S", 0.02)


@pytest.fixture
def settings() -> Settings:
    return load_settings()


def deployed(name: str, port: str = "1", **labels: str) -> ContainerFact:
    fact = container(
        f"sparkdeploy-{name}", deployment=name, port=port, recipe_values=LIMITS, **labels
    )
    return replace(fact, started_at="2026-11-25T11:00:00Z")


@contextlib.contextmanager
def watching(
    engine: FakeContainers, settings: Settings, *names: str
) -> Iterator[Callable[[], WatchSnapshot]]:
    reader = EngineReader(engine.host, names, settings)
    reader.start()

    def snapshot() -> WatchSnapshot:
        servers = {name: server.look for name, server in reader.servers.items()}
        return snapshot_of(NOW, reader.look.deployments, servers, (), reader.look.problem)

    try:
        yield snapshot
    finally:
        reader.end()
        reader.join(5)
        for server in reader.servers.values():
            server.join(10)


def tells(snapshot: Callable[[], WatchSnapshot], generated_tokens: int) -> bool:
    return snapshot().deployments[0].figures.generated_tokens == generated_tokens


def life(snapshot: WatchSnapshot, name: str = "main") -> DeploymentState | None:
    return next((item.life for item in snapshot.deployments if item.name == name), None)


def test_a_deployment_starts_serves_falls_silent_ends_and_is_removed(
    server: TableServer, settings: Settings
) -> None:
    counts(server, 5, status=503)
    engine = FakeContainers.of(deployed("main", str(server.port)))
    with watching(engine, settings) as snapshot:
        assert life(snapshot()) is DeploymentState.STARTING
        counts(server, 5)
        until(lambda: life(snapshot()) is DeploymentState.SERVING)
        assert snapshot().deployments[0].figures.generated_tokens == 5
        counts(server, 5, status=500)
        until(lambda: life(snapshot()) is DeploymentState.SILENT)
        silent = snapshot().deployments[0]
        assert silent.gone_since is not None
        assert "answered 500" in silent.last_error
        assert silent.figures.generated_tokens == 5, "the last figures stay"
        engine.stop("sparkdeploy-main")
        until(lambda: life(snapshot()) is DeploymentState.STOPPED)
        engine.remove("sparkdeploy-main")
        until(lambda: life(snapshot()) is DeploymentState.REMOVED)
        engine.facts["again"] = replace(deployed("main", str(server.port)), container_id="again")
        counts(server, 5)
        until(lambda: life(snapshot()) is DeploymentState.SERVING)
        engine.breaks_with = NodeError("docker: the Docker Engine does not answer")
        until(lambda: bool(snapshot().problem))
        assert life(snapshot()) is DeploymentState.SERVING, "what serves goes on"


def test_a_server_that_hangs_delays_no_other(server: TableServer, settings: Settings) -> None:
    with counting() as slow:
        slow.go_on.clear()
        engine = FakeContainers.of(
            deployed("fast", str(server.port)),
            replace(deployed("slow", str(slow.port)), container_id="s"),
        )
        with watching(engine, settings) as snapshot:
            until(lambda: life(snapshot(), "fast") is DeploymentState.SERVING)
            for count in (6, 7, 8):
                counts(server, count)
                until(partial(tells, snapshot, count))
            assert life(snapshot(), "slow") is DeploymentState.STARTING
            slow.go_on.set()
            until(lambda: life(snapshot(), "slow") is DeploymentState.SERVING)


def counted(snapshot: WatchSnapshot) -> dict[str, float | None]:
    return {item.name: item.figures.generated_tokens for item in snapshot.deployments}


def test_another_server_on_the_port_of_a_removed_one_is_not_it(
    server: TableServer, settings: Settings
) -> None:
    engine = FakeContainers.of(deployed("main", str(server.port)))
    with watching(engine, settings) as snapshot:
        until(lambda: life(snapshot()) is DeploymentState.SERVING)
        engine.facts = {"other": replace(deployed("other", str(server.port)), container_id="other")}
        until(lambda: life(snapshot(), "main") is DeploymentState.REMOVED)
        counts(server, 99)
        until(lambda: counted(snapshot()).get("other") == 99)
        figures = counted(snapshot())
        assert figures == {"main": 5, "other": 99}


def test_only_named_ones_are_watched_and_a_name_has_to_be_there(settings: Settings) -> None:
    engine = FakeContainers.of(deployed("main"), replace(deployed("b"), container_id="b"))
    with watching(engine, settings, "b") as snapshot:
        assert [item.name for item in snapshot().deployments] == ["b"]
    with pytest.raises(NodeError, match="no deployment named c"):
        EngineReader(engine.host, ("c",), settings)


def test_this_machine_tells_its_memory(settings: Settings) -> None:
    reader = NodeReader("here", None, settings)
    reader.start()
    until(lambda: reader.seen().available_bytes is not None)
    look = reader.seen()
    assert look.gone_since is None
    assert look.total_bytes is not None
    assert look.available_bytes is not None
    assert 0 < look.available_bytes < look.total_bytes
    reader.end()
    reader.join(5)
    assert not reader.is_alive()


def test_a_node_that_goes_away_is_gone_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    script = "echo MemAvailable: 1024 kB; echo 2411, 63, 61.4; exec cat"
    monkeypatch.setattr(readers, "NODE_PROGRAM", script)
    unreachable: dict[str, NodeError] = {}
    opened: list[Node] = []

    @contextlib.contextmanager
    def open_nodes(_settings: Settings, names: frozenset[str]) -> Iterator[Nodes]:
        (name,) = names
        opened.append(Node(name))
        opened[-1]._docker = FakeContainers.of(deployed("main")).host
        yield Nodes(Node("here"), () if unreachable else (opened[-1],), unreachable)

    # The program there is one of ours here, of which the test knows how to end it.
    programs: list[shell.Running] = []
    start = Node.start

    def remembered(node: Node, text: str) -> shell.Running:
        programs.append(start(node, text))
        return programs[-1]

    monkeypatch.setattr(Node, "start", remembered)
    monkeypatch.setattr(readers, "open_nodes", open_nodes)
    reader = NodeReader("spark-2", "spark-2", settings)
    reader.start()
    until(lambda: reader.seen().available_bytes is not None)
    assert reader.seen().available_bytes == 1 << 20
    assert reader.seen().gpu is not None
    unreachable["spark-2"] = NodeError("spark-2: nothing listens for ssh")
    # Not by `end`, which closes the pipe that the reader reads at that moment.
    programs[-1]._process.terminate()
    until(lambda: "nothing listens" in reader.seen().problem)
    gone = reader.seen()
    assert gone.gone_since is not None
    assert gone.available_bytes == 1 << 20
    time.sleep(0.1)
    assert reader.seen().gone_since == gone.gone_since, "it stays the moment at which it went"
    unreachable.clear()
    until(lambda: reader.seen().gone_since is None)
    reader.end()
    reader.join(5)


def test_a_node_that_sends_a_line_without_an_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr(readers, "NODE_PROGRAM", "exec cat /dev/zero")
    monkeypatch.setattr(readers, "RETRY_S", 0.0)
    reader = NodeReader("here", None, settings)
    reader.read_once()
    assert "here sends a line without an end" in reader.seen().problem


@pytest.mark.parametrize(("silent_s", "is_gone"), [(SILENCE_S - 1, False), (SILENCE_S + 1, True)])
def test_a_node_whose_connection_stands_and_says_nothing_is_gone(
    settings: Settings, silent_s: float, is_gone: bool
) -> None:
    reader = NodeReader("spark-2", "spark-2", settings)
    reader.look = NodeSample("spark-2", available_bytes=1)
    reader._heard_at = datetime.now(UTC) - timedelta(seconds=silent_s)
    assert reader.seen().gone_since == (reader._heard_at if is_gone else None)


def test_a_container_that_started_again_has_its_log_and_its_server_read_anew(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, told = FakeContainers.of(deployed("main")), itertools.count()
    monkeypatch.setattr(readers, "restarts_of", lambda *_: (next(told), None))
    reader = EngineReader(engine.host, (), settings)
    reader.read_once()
    assert [it.restarts for it in reader.look.deployments] == [0]
    first = reader.servers["main"]
    first.event_count += 1
    reader.read_once()
    assert [it.restarts for it in reader.look.deployments] == [1]
    (fact,) = engine.facts.values()
    engine.facts = {fact.container_id: replace(fact, pid=(fact.pid or 0) + 1)}
    reader.read_once()
    assert reader.servers["main"] is not first
    reader.end()


def test_what_a_node_tells_is_read_line_by_line() -> None:
    look = heard(
        NodeSample("a"), ["MemTotal: 2048 kB", "MemAvailable: 1024 kB", "2411, 63, 61.4"], {}
    )
    assert (look.total_bytes, look.available_bytes) == (2 << 20, 1 << 20)
    assert look.gpu is not None
    assert (look.gpu.sm_clock_mhz, look.gpu.temperature_c, look.gpu.power_w) == (2411, 63, 61.4)
    later = heard(look, ["MemAvailable: 512 kB"], None)
    assert (later.total_bytes, later.available_bytes, later.gpu) == (2 << 20, 512 << 10, look.gpu)
    assert heard(look, ["[N/A], 63, [N/A]"], None).gpu.power_w is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("node", "expected", "note"),
    [
        (NodeSample("spark-2", parts={"main": "running"}), DeploymentState.SERVING, ""),
        (NodeSample("spark-2"), DeploymentState.SERVING, ""),
        (
            NodeSample("spark-2", parts={"main": "exited"}),
            DeploymentState.BROKEN,
            "spark-2: exited",
        ),
        (NodeSample("spark-2", parts={}), DeploymentState.BROKEN, "spark-2: no container"),
        (NodeSample("spark-2", gone_since=NOW), DeploymentState.BROKEN, "spark-2 is gone"),
    ],
)
def test_a_cluster_that_lost_a_node_is_broken(
    node: NodeSample, expected: DeploymentState, note: str
) -> None:
    fact = deployed("main", nodes="spark-1,spark-2", rank="0")
    reader = EngineReader(FakeContainers.of(fact).host, (), load_settings())
    for server in reader.servers.values():
        server.end()
    looks = {"main": ServerSample(is_answering=True, has_answered=True)}
    here = NodeSample("spark-1", available_bytes=1)
    shown = snapshot_of(NOW, reader.look.deployments, looks, (here, node))
    assert shown.deployments[0].life is expected
    assert shown.deployments[0].note == note
    assert [item.floor_bytes for item in shown.nodes] == [4 << 30, 4 << 30]


def test_a_line_of_json_has_every_figure() -> None:
    told = json.loads(snapshot_json(made_snapshot()))
    row, node = told["deployments"][0], told["nodes"][0]
    assert row["tokens_per_s"] == 1234.5
    assert row["first_token"] == {"p50_s": 12.345, "p95_s": 99.99}
    assert len(row["accepted"]) == 12
    assert "rates" not in row
    assert row["uptime_s"] == 76 * 3600
    assert (node["memory_floor_bytes"], node["power_w"]) == (4 << 30, 61.4)


def test_a_server_is_silent_since_it_was_first_silent(settings: Settings) -> None:
    reader = ServerReader(deployed("main"), settings)

    def silent() -> ServedModel:
        raise NodeError("nobody listens")

    reader._open = silent
    reader.read_once()
    since = reader.look.silent_since
    reader.read_once()
    assert since is not None
    assert reader.look.silent_since == since


def test_what_is_read_while_the_reader_ends_may_be_another_servers(settings: Settings) -> None:
    reader = ServerReader(deployed("main"), settings)

    def exposition(*, timeout_s: float) -> str:
        del timeout_s
        reader.end()
        return "vllm:generation_tokens_total 99\n"

    model: Any = SimpleNamespace(exposition=exposition)
    reader._open = lambda: model
    reader.read_once()
    assert reader.look == ServerSample()
