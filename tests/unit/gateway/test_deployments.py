"""What the gateway sees of its models' deployments, and how it starts them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sparkdeploy import labels
from sparkdeploy.errors import NodeError, UnhealthyError
from sparkdeploy.gateway import deployments
from sparkdeploy.gateway.deployments import FORGIVEN_MISSES, StackDeployments
from sparkdeploy.gateway.scheduler import Sighting
from sparkdeploy.gateway.stack import ModelEntry
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.node import node_behind
from sparkdeploy.recipe.answers import EMBEDDINGS
from sparkdeploy.settings import load_settings
from tests.fakes.containers import Crashed, FakeContainers, container
from tests.fakes.http_server import TableServer, serving

MODEL = ModelEntry(name="main", recipe="v2")


@pytest.fixture
def server() -> Iterator[TableServer]:
    with serving(TableServer()) as made:
        made.answers["/health"] = (200, "")
        yield made


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes the stack's deployments of an engine's containers."""

    def made(engine: FakeContainers) -> StackDeployments:
        monkeypatch.setattr(deployments, "Node", lambda *_, **__: node_behind("here", engine.host))
        monkeypatch.setattr(deployments, "connect", lambda _settings: engine.host)
        plan: Any = _Plan()
        return StackDeployments(plan, load_settings())

    return made


class _Plan:
    stack = SimpleNamespace(models=(MODEL,))

    def __getitem__(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(
            name=name, resolved=SimpleNamespace(recipe=SimpleNamespace(name="v2"))
        )


def fact_at(port: int, state: str = "running") -> ContainerFact:
    fact = container("sparkdeploy-main", state, port=str(port))
    marks = {labels.SERVED_NAME: "qwen", labels.ANSWERS: EMBEDDINGS.as_label()}
    return replace(fact, labels={**fact.labels, **marks}, started_at="2026-11-20T12:02:00Z")


def test_a_server_that_answers_is_where_requests_go(seen: Any, server: TableServer) -> None:
    look = seen(FakeContainers.of(fact_at(server.port))).look().models["main"]
    assert look.seen is Sighting.HEALTHY
    assert (look.upstream.base_url, look.upstream.served_name) == (server.url, "qwen")
    assert look.answers == EMBEDDINGS
    assert look.upstream.key is None


def test_a_server_is_silent_for_a_moment_and_then_gone(seen: Any, server: TableServer) -> None:
    fact = fact_at(server.port)
    engine = FakeContainers.of(fact)
    found = seen(engine)
    server.answers["/health"] = (503, "")
    assert found.look().models["main"].seen is Sighting.STARTING, "it has never answered"
    server.answers["/health"] = (200, "")
    assert found.look().models["main"].seen is Sighting.HEALTHY
    server.answers["/health"] = (503, "")
    looks = [found.look().models["main"].seen for _ in range(FORGIVEN_MISSES + 2)]
    assert looks == [Sighting.HEALTHY] * FORGIVEN_MISSES + [Sighting.STARTING] * 2
    server.answers["/health"] = (200, "")
    assert found.look().models["main"].seen is Sighting.HEALTHY
    server.answers["/health"] = (503, "")
    engine.facts[fact.container_id] = replace(fact, started_at="2026-11-20T13:02:00Z")
    assert found.look().models["main"].seen is Sighting.STARTING, "nor has it since this start"


def test_nobody_listens_while_it_starts(seen: Any) -> None:
    with serving(TableServer()) as gone:
        port = gone.port
    assert seen(FakeContainers.of(fact_at(port))).look().models["main"].seen is Sighting.STARTING


@pytest.mark.parametrize("kind", ["none", "another's", "created", "stopped", "without labels"])
def test_what_is_not_there_is_stopped(seen: Any, kind: str) -> None:
    fact = fact_at(8000, "created" if kind == "created" else "exited")
    facts = {
        "none": [],
        "another's": [replace(fact, labels={})],
        "created": [fact],
        "stopped": [replace(fact, exit_code=0)],
        "without labels": [container("sparkdeploy-main", "exited")],
    }[kind]
    look = seen(FakeContainers.of(*facts)).look().models["main"]
    assert (look.seen, look.upstream) == (Sighting.STOPPED, None)


def test_a_death_is_said_with_its_cause_and_its_log_read_once(
    seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fact = replace(fact_at(8000, "exited"), exit_code=1, finished_at="2026-11-20T12:05:00Z")
    engine = Crashed({fact.container_id: fact}, log="torch.OutOfMemoryError: CUDA out of memory")
    found = seen(engine)
    first = found.look().models["main"]
    assert first.seen is Sighting.DEAD
    assert "exit code 1" in first.cause
    monkeypatch.setattr(engine, "logs", lambda *_, **__: pytest.fail("it is read again"))
    assert found.look().models["main"].cause == first.cause
    engine.facts[fact.container_id] = replace(fact, finished_at="2026-11-20T13:05:00Z")
    with pytest.raises(pytest.fail.Exception, match="it is read again"):
        found.look()


def test_docker_that_is_back_is_asked_anew(seen: Any) -> None:
    engine = FakeContainers.of()
    found = seen(engine)
    engine.breaks_with = NodeError("docker does not answer")
    with pytest.raises(NodeError):
        found.look()
    engine.breaks_with = None
    assert found.look().models["main"].seen is Sighting.STOPPED


def test_a_start_waits_for_memory_that_a_stop_gives_back(
    seen: Any, server: TableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = seen(FakeContainers.of(fact_at(server.port)))
    tries: list[str] = []

    def start(member: SimpleNamespace, _settings: object) -> None:
        tries.append(member.name)
        if len(tries) < 3:
            raise NodeError("memory: 4 GiB needed")

    monkeypatch.setattr(deployments, "start_model", start)
    monkeypatch.setattr(deployments, "RETRY_S", 0)
    monkeypatch.setattr("sparkdeploy.deploy.lifecycle.stop", lambda name: (name,))
    with pytest.raises(NodeError):
        found.start(MODEL)
    found.stop(MODEL)
    assert found.start(MODEL).base_url == server.url
    assert tries == ["main"] * 3
    tries.clear()
    monkeypatch.setattr(deployments, "MEMORY_RETURNS_S", -1)
    with pytest.raises(NodeError):
        found.start(MODEL)


def test_a_start_that_leaves_no_server_has_failed(
    seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployments, "start_model", lambda *_: None)
    with pytest.raises(UnhealthyError, match="does not answer"):
        seen(FakeContainers.of()).start(MODEL)


@pytest.mark.parametrize(
    ("recipe", "names", "seen_as"),
    [("v2", [], "healthy"), ("other", [], "starting"), ("other", ["main"], "healthy")],
)
def test_a_server_of_another_recipe_is_asked_nothing(
    seen: Any, server: TableServer, recipe: str, names: list[str], seen_as: str
) -> None:
    fact = fact_at(server.port)
    values = json.dumps({"model": {"served_name": ["qwen", *names]}})
    marks = {labels.RECIPE: recipe, labels.RECIPE_VALUES: values}
    engine = FakeContainers.of(replace(fact, labels={**fact.labels, **marks}))
    look = seen(engine).look().models["main"]
    assert look.seen is Sighting(seen_as)
    assert (look.upstream is None) is (seen_as == "starting")


def test_what_was_left_half_replaced_and_does_not_run_is_stopped(seen: Any) -> None:
    fact = replace(fact_at(8000, "exited"), exit_code=0)
    old = replace(fact, container_id="old", name="sparkdeploy-main-replaced")
    look = seen(FakeContainers.of(fact, old)).look().models["main"]
    assert look.seen is Sighting.STOPPED
    look = seen(FakeContainers.of(fact, replace(old, state="running"))).look().models["main"]
    assert look.seen is Sighting.STARTING
