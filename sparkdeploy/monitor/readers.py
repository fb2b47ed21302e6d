"""The threads that look: a server's, the Docker Engine's, a node's. None waits for another."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import (
    deployments_in,
    inspect_deployment,
    require_deployment,
)
from sparkdeploy.deploy.serving import model_of
from sparkdeploy.errors import NodeError, SparkdeployError, UnhealthyError
from sparkdeploy.monitor.snapshot import (
    ContainerSample,
    NodeSample,
    ServerSample,
    TimedMetrics,
)
from sparkdeploy.node.cluster import open_nodes
from sparkdeploy.node.facts import parse_gpu_load, parse_meminfo
from sparkdeploy.node.node import Node, named
from sparkdeploy.server.health import death, restarts_of
from sparkdeploy.server.metrics import read_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sparkdeploy.deploy.deployments import Inspected
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.server.client import ServedModel
    from sparkdeploy.settings import Settings

EVERY_S = 1.0
MAX_LINE_CHARACTERS = 1 << 20
ENGINE_EVERY_S = 3.0
"""Two calls and one for each container: what they tell changes seldom."""
METRICS_TIMEOUT_S = 5.0
RETRY_S = 10.0
LOG_PAUSE_S = 30.0
SILENCE_S = 6.0
"""A node tells something each second."""
END_S = 1.0
GPU_QUERY = "clocks.sm,temperature.gpu,power.draw"
# One program a node that goes on: a program for each look would take more than all else together.
# What it has started ends at the first line that nobody reads.
NODE_PROGRAM = f"""\
exec 2>/dev/null
command -v nvidia-smi >/dev/null && nvidia-smi --id=0 --query-gpu={GPU_QUERY} \
--format=csv,noheader,nounits --loop=1 &
while :; do
  while read -r name value unit; do
    case $name in MemTotal:|MemAvailable:) echo "$name $value $unit" || exit;; esac
  done </proc/meminfo
  sleep 1
done
"""


class Reader(threading.Thread):
    """A thread that looks again and again until it is told to end."""

    every_s = EVERY_S

    def __init__(self, name: str) -> None:
        super().__init__(name=f"watch-{name}", daemon=True)
        self.ended = threading.Event()
        self.failure: Exception | None = None
        """A mistake of ours, which is the whole command's."""

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                self.read_once()
            except Exception as error:  # noqa: BLE001 - who shows what was seen raises it
                self.failure = error
                break
            # On the full second, so that all that is shown together was seen together.
            self.ended.wait(self.every_s - time.monotonic() % self.every_s)
        self.close()

    def read_once(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Give back what it holds."""

    def end(self) -> None:
        self.ended.set()


class ServerReader(Reader):
    """Reads /metrics of one server."""

    def __init__(self, fact: ContainerFact, settings: Settings) -> None:
        super().__init__(f"server-{fact.deployment}")
        self.container_id = fact.container_id
        self.pid = fact.pid
        self.look = ServerSample()
        self.event_count = 0
        """How often something happened of which the log may tell: a start, or an end."""
        self._silence_counted_s = -LOG_PAUSE_S
        self._open: Callable[[], ServedModel] = lambda: model_of(fact, settings)
        self._model: ServedModel | None = None

    def read_once(self) -> None:
        try:
            if self._model is None:
                self._model = self._open()
            exposition = self._model.exposition(timeout_s=METRICS_TIMEOUT_S)
        except (NodeError, UnhealthyError) as error:
            self._note_silence(error.message)
            return
        if self.ended.is_set():
            # Another server may listen on this port by now: what was read may be of that one.
            return
        metrics = read_metrics(exposition)
        if metrics is None:
            self._note_silence("its /metrics tells nothing of vLLM")
            return
        before = self.look
        history = before.history.after(TimedMetrics(time.monotonic(), metrics))
        if len(history.seen) == 1:
            self.event_count += 1
        self.look = ServerSample(history, is_answering=True, has_answered=True)

    def _note_silence(self, why: str) -> None:
        before, now_s = self.look, time.monotonic()
        # A busy server is silent now and then, and a log is long.
        if before.is_answering and now_s - self._silence_counted_s >= LOG_PAUSE_S:
            self._silence_counted_s = now_s
            self.event_count += 1
        self.look = replace(
            before,
            history=before.history.idle() if before.has_answered else before.history,
            is_answering=False,
            silent_since=before.silent_since or datetime.now(UTC),
            problem=why,
        )

    def close(self) -> None:
        if self._model is not None:
            self._model.__exit__()


@dataclass(frozen=True, slots=True)
class EngineSample:
    deployments: tuple[ContainerSample, ...] = ()
    problem: str = ""


class EngineReader(Reader):
    """Reads this machine's Docker Engine: its deployments, their restarts and their ends."""

    every_s = ENGINE_EVERY_S

    def __init__(self, host: DockerHost, names: tuple[str, ...], settings: Settings) -> None:
        """Watch the named deployments, or all; raises NodeError for a name that is not there."""
        super().__init__("engine")
        self.look = EngineSample()
        self.servers: Mapping[str, ServerReader] = {}
        self._host = host
        self._names = names
        self._settings = settings
        self._causes: dict[tuple[str, str, int], tuple[int, str]] = {}
        for name in names:
            require_deployment(host, name)
        self.read_once()

    def read_once(self) -> None:
        try:
            names = self._names
            listed = deployments_in(self._host.own_containers()).values()
            asked = (it for it in listed if not names or it.name in names)
            inspected = (inspect_deployment(self._host, it) for it in asked)
            found = tuple(it for it in inspected if it is not None)
            self._keep_servers(found)
            looks = {
                it.name: ContainerSample(it, *self._cause(it), floor_bytes=_floor_bytes(it.current))
                for it in found
            }
        except NodeError as error:
            self.look = replace(self.look, problem=error.message)
            return
        now = datetime.now(UTC)
        for earlier in self.look.deployments:
            # What was removed stays on the screen.
            gone = replace(earlier, removed_at=earlier.removed_at or now)
            looks.setdefault(earlier.found.name, gone)
        self.look = EngineSample(tuple(looks[name] for name in sorted(looks)))

    def end(self) -> None:
        super().end()
        for server in self.servers.values():
            server.end()

    def _keep_servers(self, found: Iterable[Inspected]) -> None:
        """Have one reader for each container that serves; of what ended the last look stays."""
        servers = dict(self.servers)
        served = {
            it.name: it.current
            for it in found
            if it.current.is_running and not it.is_of_another_head
        }
        for name, reader in servers.items():
            fact = served.get(name)
            # Another server may come to listen on its port.
            if fact is None or (fact.container_id, fact.pid) != (reader.container_id, reader.pid):
                reader.end()
        for name, fact in served.items():
            if name not in servers or servers[name].ended.is_set():
                servers[name] = ServerReader(fact, self._settings)
                servers[name].start()
        self.servers = servers

    def _cause(self, found: Inspected) -> tuple[int, str]:
        """Return restarts and the last cause; a log is read again only when something happened."""
        fact, reader = found.current, self.servers.get(found.name)
        key = (fact.container_id, fact.state, reader.event_count if reader else 0)
        if key not in self._causes:
            self._causes = {it: told for it, told in self._causes.items() if it[0] != key[0]}
            self._causes[key] = self._read_cause(fact)
        return self._causes[key]

    def _read_cause(self, fact: ContainerFact) -> tuple[int, str]:
        if fact.is_running:
            count, cause = restarts_of(self._host, fact)
            return count, cause.describe() if cause else ""
        if fact.state not in {"exited", "dead"} or fact.is_stopped:
            return 0, ""
        return 0, death(self._host, fact.container_id, fact).cause.describe()


def _floor_bytes(fact: ContainerFact) -> int | None:
    """Return the memory that the recipe keeps free, from its label; None without one."""
    text = fact.labels.get(labels.RECIPE_VALUES)
    return int(json.loads(text)["limits"]["memory_floor_gib"] * 2**30) if text else None


class NodeReader(Reader):
    """Listens to one node, this machine without `name`: its memory and GPU, told each second."""

    def __init__(self, shown_name: str, name: str | None, settings: Settings) -> None:
        super().__init__(f"node-{shown_name}")
        self.look = NodeSample(shown_name)
        self._name = name
        self._settings = settings
        self._heard_at = datetime.now(UTC)

    def seen(self) -> NodeSample:
        """Return the last look; a node that has said nothing for seconds is gone."""
        look, heard_at = self.look, self._heard_at
        is_silent = (datetime.now(UTC) - heard_at).total_seconds() > SILENCE_S
        if look.gone_since is None and is_silent and look.available_bytes is not None:
            return replace(look, gone_since=heard_at, problem="it says nothing")
        return look

    def read_once(self) -> None:
        try:
            if self._name is None:
                self._listen(Node(self.look.name))
            else:
                with open_nodes(self._settings, frozenset({self._name})) as nodes:
                    self._listen(nodes.node(self._name))
        except SparkdeployError as error:
            self._note_gone(error.message)
        else:
            self._note_gone("the connection broke off")
        self.ended.wait(RETRY_S)

    def _note_gone(self, why: str) -> None:
        since = self.look.gone_since or datetime.now(UTC)
        self.look = replace(self.look, gone_since=since, problem=why)

    def _listen(self, node: Node) -> None:
        parts = None if node.is_here else PartsReader(node)
        if parts is not None:
            parts.start()
        try:
            with node.start(NODE_PROGRAM) as program:
                rest = ""
                while not self.ended.is_set() and (program.is_alive or rest):
                    said = program.read_some(timeout_s=EVERY_S)
                    if not said and not program.is_alive:
                        break
                    *lines, rest = (rest + said).split("\n")
                    if len(rest) > MAX_LINE_CHARACTERS:
                        raise NodeError(f"{node.name} sends a line without an end")
                    if lines:
                        self._heard_at = datetime.now(UTC)
                        self.look = heard(self.look, lines, parts.states if parts else None)
        finally:
            if parts is not None:
                parts.end()


class PartsReader(Reader):
    """Reads which parts of deployments a node has; its Docker Engine may be slower than its ssh."""

    every_s = ENGINE_EVERY_S

    def __init__(self, node: Node) -> None:
        super().__init__(f"parts-{node.name}")
        self.states: Mapping[str, str] | None = None
        self._node = node

    def read_once(self) -> None:
        try:
            with named(self._node):
                found = deployments_in(self._node.docker.own_containers()).values()
        except NodeError:
            # That the node is gone is seen from what it no longer tells.
            return
        self.states = {it.name: it.serving.state for it in found if it.serving is not None}


def heard(look: NodeSample, lines: Iterable[str], parts: Mapping[str, str] | None) -> NodeSample:
    """Return a node's look after some whole lines of what it tells."""
    text = "\n".join(lines)
    memory = parse_meminfo(text)
    loads = (parse_gpu_load(line) for line in text.splitlines() if not line.startswith("Mem"))
    told = [load for load in loads if load is not None]
    return NodeSample(
        look.name,
        available_bytes=memory.get("MemAvailable", look.available_bytes),
        total_bytes=memory.get("MemTotal", look.total_bytes),
        gpu=told[-1] if told else look.gpu,
        parts=parts,
    )
