"""One, two or three machines without machines: their engines, and a real `up` over them."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy import expectation, lifecycle, prepare, recovery, removal
from sparkdeploy.deploy import launch as deploy_launch
from sparkdeploy.deploy import nodes as deploy_nodes
from sparkdeploy.deploy import request as deploy_request
from sparkdeploy.deploy import up as deploy_up
from sparkdeploy.deploy.lifecycle import Started
from sparkdeploy.deploy.nodes import ClusterRecord
from sparkdeploy.deploy.replace import Replacement
from sparkdeploy.deploy.request import Request
from sparkdeploy.deploy.up import Extent, Outcome, UpOptions
from sparkdeploy.deploy.wait import Watch
from sparkdeploy.errors import NodeError, RecipeError, UnhealthyError
from sparkdeploy.image.stages import Stage
from sparkdeploy.monitor import status
from sparkdeploy.node.container import ContainerFact, ContainerSpec, ImageFact, ListedContainer
from sparkdeploy.node.node import Node, Nodes, node_behind
from sparkdeploy.node.ssh import SshLink
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.make import make_plan, topology_for
from sparkdeploy.plan.observed import Observed, ObservedNode
from sparkdeploy.plan.steps import Plan, for_cluster
from sparkdeploy.recipe.load import Library, Resolved, load_recipe
from sparkdeploy.server.facts import EngineFacts
from sparkdeploy.server.health import Readiness
from sparkdeploy.settings import load_settings
from tests.fakes.adapters import told_inside
from tests.fakes.containers import FakeContainers
from tests.fakes.fabric import fabric_fact, spark, sparks
from tests.fakes.plans import FOLDERS, SPARK, built, made_stages, model_fact

NEW = "sparkdeploy-main"
OLD, LATER = "serve.max_num_seqs=1", "serve.max_num_seqs=2"
"""Settings of two `up`s; a container's text is the number."""


class Killed(BaseException):
    """The process is no more: nothing it does from here on reaches an engine."""


@dataclass
class Engine(FakeContainers):
    """Containers whose engine remembers when each was made, and tells the lab of every change."""

    lab: Lab | None = None
    made: int = 0
    inside: dict[str, object] = field(default_factory=dict)
    """What a container here sees otherwise than on a sound Spark."""

    def _step(self) -> None:
        if self.lab is not None:
            self.lab.step()

    def create(self, spec: ContainerSpec) -> str:
        self._step()
        self.made += 1
        key = f"{spec.labels.get('test.text', 'c')}-{self.made}"
        now = datetime.now(UTC).isoformat()
        fact = FakeContainers.create(self, spec)
        self.facts[key] = replace(
            self.facts.pop(fact), container_id=key, created_at=f"{self.made:04}", started_at=now
        )
        return key

    def start(self, key: str) -> None:
        self._step()
        super().start(key)

    def stop(self, key: str, *, timeout_s: int = 30) -> None:
        self._step()
        super().stop(key, timeout_s=timeout_s)
        now = datetime.now(UTC).isoformat()
        self.facts[key] = replace(self.facts[key], finished_at=now)

    def dies(self, key: str, exit_code: int = 1) -> None:
        """End a container by itself."""
        now = datetime.now(UTC).isoformat()
        self.facts[key] = replace(
            self.facts[key], state="exited", exit_code=exit_code, finished_at=now
        )

    def rename(self, key: str, name: str) -> None:
        self._step()
        super().rename(key, name)

    def remove(self, container: str | ListedContainer) -> None:
        self._step()
        super().remove(container)

    def find_image(self, _reference: str) -> ImageFact:
        return ImageFact("sha256:1", ("sparkdeploy/guard:1",), {}, 1)

    def run_to_end(self, spec: ContainerSpec, *, timeout_s: int) -> tuple[int, str]:
        del timeout_s
        return 0, told_inside(int(spec.env["VLLM_HOST_IP"][-1]), **self.inside)


@dataclass
class Lab:
    """`count` machines, this one the head; `up` is the product's, all that is slow is not."""

    count: int
    shipped: Library
    engines: list[Engine] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    """Nodes that do not answer ssh."""
    is_answering: bool = False
    """Whether a running head answers when it is asked from outside a wait."""
    wait: Any = None
    """What a wait does; called with the parts."""
    stages: tuple[Stage, ...] = ()
    steps: int = 0
    interrupt_at: tuple[int, ...] = ()
    """At which changes Ctrl-C comes."""
    kill_at: int = 0
    waits: int = 0
    planned: list[Plan] = field(default_factory=list)
    consent: Any = bool  # any question but an empty one is agreed to
    locked: frozenset[str] = frozenset()
    """Nodes whose ranks no other head may start now."""
    model_bytes: int = 72 * 10**9

    def __post_init__(self) -> None:
        self.engines = [Engine(lab=self) for _ in range(self.count)]
        self.wait = self._answer

    def _answer(self, _parts: Any) -> Readiness:
        self.is_answering = True
        return READY

    def step(self) -> None:
        self.steps += 1
        if self.kill_at and self.steps >= self.kill_at:
            raise Killed
        if self.steps in self.interrupt_at:
            signal.raise_signal(signal.SIGINT)

    @contextlib.contextmanager
    def ranks_lock(self, nodes: Iterable[Node], _command: str) -> Iterator[None]:
        self.locked = frozenset(node.name for node in nodes)
        try:
            yield
        finally:
            self.locked = frozenset()

    def nodes(self, names: frozenset[str]) -> Nodes:
        link = SimpleNamespace(docker_address="ssh://there", is_open=True, close=lambda: None)
        made, failed = [], {}
        for number, engine in enumerate(self.engines, start=1):
            name = f"spark-{number}"
            if number > 1 and name not in names:
                continue
            if name in self.gone:
                failed[name] = NodeError(f"{name}: nothing listens for ssh")
                continue
            node = Node(name, spark(number), cast("SshLink", link) if number > 1 else None)
            node._docker = engine.host
            made.append(node)
        return Nodes(made[0], tuple(made[1:]), failed, sparks(max(self.count, 2)))

    @property
    def record(self) -> ClusterRecord:
        return ClusterRecord.below(load_settings().state_dir)

    def up(
        self,
        *sets: str,
        size: int | None = None,
        extent: Extent = Extent.ANSWER,
        is_unit: bool = False,
    ) -> Outcome:
        """Deploy v2 over `size` machines; all of them when left out."""
        size = self.count if size is None else size
        parallel = [f"cluster.tensor_parallel={size}"] if size > 1 else []
        request = Request("v2", (*parallel, *sets), Deployment("main"), cluster=size > 1)
        resolved = _loaded(self.shipped, request.assignments)
        if request.cluster:
            resolved = for_cluster(resolved)
        self.steps = 0
        return deploy_up.up(
            resolved,
            request,
            load_settings(),
            confirm=self.consent,
            options=UpOptions(extent, is_unit=is_unit),
        )

    def roll_back(self) -> str:
        self.steps = 0
        return lifecycle.roll_back("main").action

    def stop(self) -> tuple[str, ...]:
        self.steps = 0
        stopped = lifecycle.stop("main")
        self.is_answering = False
        return stopped

    def start(self) -> Started:
        self.steps = 0
        return lifecycle.start("main")

    def down(self, *, missing_ok: bool = False) -> tuple[str, ...]:
        return removal.down("main", missing_ok=missing_ok)

    def status(self) -> Any:
        (row,) = status.current_rows()
        return row

    def running(self) -> list[str | None]:
        """The text of each machine's serving container; None where none runs."""
        found = (engine.find_container(NEW) for engine in self.engines)
        return [text_of(fact) if fact is not None and fact.is_running else None for fact in found]

    def names(self) -> list[list[str]]:
        return [sorted(fact.name for fact in engine.facts.values()) for engine in self.engines]

    def draft(self, resolved: Resolved, _settings: Any, nodes: Nodes, name: Deployment) -> Plan:
        seen = tuple(
            ObservedNode(
                replace(SPARK, name=node.name, fabric=fabric_fact(int(node.name[-1]))),
                containers=node.docker.own_containers(),
                missing_bytes=None if node.is_here else 0,
            )
            for node in nodes
        )
        head = replace(seen[0], images=_built(self.stages), missing_bytes=None)
        others = tuple(replace(item, images=head.images) for item in seen[1:])
        model = model_fact(size_bytes=self.model_bytes)
        observed = Observed((head, *others), "registry", model)
        plan = make_plan(
            resolved,
            observed,
            stages=self.stages,
            deployment=name,
            folders=FOLDERS,
            topology=topology_for(resolved, nodes, observed),
        )
        self.planned.append(plan)
        return plan


bring_for_real = Replacement.bring


@functools.cache
def _loaded(shipped: Library, assignments: tuple[str, ...]) -> Resolved:
    return load_recipe(shipped, "v2", assignments)


@functools.cache
def _stages(shipped: Library) -> tuple[Stage, ...]:
    return made_stages(_loaded(shipped, ()).engine)


class _Readiness:
    startup_s = 1.0
    facts = EngineFacts()
    phases_s: dict[str, float] = {}  # noqa: RUF012 - nobody writes it


READY = cast("Readiness", _Readiness())


def text_of(fact: ContainerFact) -> str:
    return fact.labels.get("test.text", "")


def _built(stages: tuple[Stage, ...]) -> dict[str, Any]:
    return {stage.tag: built(stage) for stage in stages}


def build(monkeypatch: pytest.MonkeyPatch, shipped: Library, count: int) -> Lab:
    """Put the lab in the place of machines, images, weights and waits."""
    lab = Lab(count, shipped, stages=_stages(shipped))

    @contextlib.contextmanager
    def this_node(_settings: Any) -> Iterator[Nodes]:
        yield lab.nodes(frozenset()).alone()

    @contextlib.contextmanager
    def open_nodes(
        _settings: Any, names: frozenset[str], _this: Node | None = None
    ) -> Iterator[Nodes]:
        yield lab.nodes(names)

    def wait_for_head(watch: Watch) -> Readiness:
        lab.waits += 1
        done: Readiness = lab.wait(watch.ranks)
        return done

    for module in (deploy_nodes, deploy_request, status):
        monkeypatch.setattr(module, "open_nodes", open_nodes)
    for module in (deploy_nodes, deploy_request, status, removal):
        monkeypatch.setattr(module, "this_node", this_node)
    monkeypatch.setattr(deploy_nodes, "configured", lambda _settings: sparks(max(count, 2)))
    monkeypatch.setattr(deploy_nodes, "name_here", lambda _config: "spark-1")
    monkeypatch.setattr(deploy_up, "draft_plan", lab.draft)
    monkeypatch.setattr(deploy_up, "bring_models", lambda *_, **_options: False)
    monkeypatch.setattr(prepare, "send_images", lambda *_: {})
    monkeypatch.setattr(prepare, "prepare_folders", lambda *_: None)
    monkeypatch.setattr("sparkdeploy.deploy.doctor.doctor_report", lambda *_: {})
    monkeypatch.setattr(
        expectation, "expectation_of", lambda *_: expectation.Expectation(None, (), None)
    )
    monkeypatch.setattr(deploy_launch, "require_memory", lambda *_, **_options: None)
    monkeypatch.setattr(deploy_up, "ranks_lock", lab.ranks_lock)
    monkeypatch.setattr(lifecycle, "ranks_lock", lab.ranks_lock)
    monkeypatch.setattr(Watch, "_wait_for_head", wait_for_head)
    monkeypatch.setattr("sparkdeploy.deploy.wait.load_durations", lambda *_a, **_k: {})
    monkeypatch.setattr("sparkdeploy.deploy.wait.save_durations", lambda *_: None)
    monkeypatch.setattr("sparkdeploy.deploy.wait.POLL_S", 0.001)

    def bring(replacement: Replacement, part: ContainerSpec | ContainerFact) -> None:
        assert replacement.node.name in lab.locked
        if isinstance(part, ContainerSpec):
            number = lab.planned[-1].resolved.recipe.serve.max_num_seqs
            part = replace(part, labels={**part.labels, "test.text": str(number)})
        bring_for_real(replacement, part)

    monkeypatch.setattr(Replacement, "bring", bring)
    for module in (deploy_up, recovery, status, lifecycle):
        monkeypatch.setattr(module, "answers", lambda fact: fact.is_running and lab.is_answering)
    return lab


def reached_alone(monkeypatch: pytest.MonkeyPatch, engine: FakeContainers) -> None:
    """Let this machine have that engine, and no other machine be there."""

    @contextlib.contextmanager
    def this_node(_settings: Any) -> Iterator[Nodes]:
        yield Nodes(node_behind("here", engine.host))

    @contextlib.contextmanager
    def open_nodes(
        _settings: Any, _names: frozenset[str], _this: Node | None = None
    ) -> Iterator[Nodes]:
        raise RecipeError("config.yaml names no nodes")
        yield

    for module in (deploy_nodes, deploy_request, status):
        monkeypatch.setattr(module, "open_nodes", open_nodes)
    for module in (deploy_nodes, deploy_request, status, removal):
        monkeypatch.setattr(module, "this_node", this_node)


def dies(_parts: Any) -> Readiness:
    raise UnhealthyError("it died")


def interrupts(_parts: Any) -> Readiness:
    signal.raise_signal(signal.SIGINT)
    raise AssertionError


def killed(_parts: Any) -> Readiness:
    raise Killed


def launches(lab: Lab) -> set[str]:
    found = (engine.find_container(NEW) for engine in lab.engines)
    return {fact.labels.get(labels.LAUNCH, "") for fact in found if fact is not None}


def deployed(lab: Lab) -> Lab:
    lab.up(OLD)
    lab.is_answering = True
    return lab


def check_whole(lab: Lab, text: str) -> None:
    """Every machine serves the same, started together, and nothing is half done."""
    assert lab.running() == [text] * lab.count
    assert len(launches(lab)) == 1
    for names in lab.names():
        assert f"{NEW}-replaced" not in names
