"""For which processors images are: what the Docker Engine says, not the machine's kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sparkdeploy.checks.survey import survey
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image.stages import BASE_SOURCES
from sparkdeploy.node import facts
from sparkdeploy.node.node import Node, Nodes, node_behind
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.make import draft_plan
from sparkdeploy.recipe.load import Library, load_engine, load_recipe
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep.clean import wanted_by
from tests.fakes.containers import FakeContainers
from tests.fakes.plans import DOCKER, made_stages


def nodes_with(architecture: str) -> Nodes:
    engine = FakeContainers(engine=replace(DOCKER, architecture=architecture))
    return Nodes(node_behind("here", engine.host))


@pytest.fixture
def on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.mark.parametrize(
    ("told", "ours"),
    [("aarch64", "aarch64"), ("arm64", "aarch64"), ("x86_64", "x86_64"), ("amd64", "x86_64")],
)
@pytest.mark.usefixtures("on_x86")
def test_images_and_locks_are_for_the_docker_engine(
    shipped: Library, told: str, ours: facts.Architecture
) -> None:
    resolved = load_recipe(shipped, "v2")
    plan = draft_plan(resolved, load_settings(), nodes_with(told), Deployment("main"))
    assert plan.observed.head.facts.architecture == ours
    wanted = made_stages(resolved.engine, architecture=ours)
    assert [step.stage for step in plan.images] == list(wanted)


@pytest.mark.parametrize("told", ["armv7l", "riscv64"])
def test_an_engine_that_no_vllm_is_built_for_is_refused(told: str) -> None:
    nodes = nodes_with(told)
    found = survey(nodes, load_settings().hub_cache)
    assert found.failures["here"].message == f"there is no vLLM for {told}"


@pytest.mark.usefixtures("on_x86")
def test_without_docker_the_processor_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_node: Any) -> None:
        raise NodeError("docker does not answer")

    monkeypatch.setattr(Node, "docker", property(silent))
    found = survey(Nodes(Node("here")), load_settings().hub_cache)
    assert found.seen["here"].architecture == "x86_64"
    assert facts.architecture_of(replace(DOCKER, architecture="")) == "x86_64"


def test_clean_keeps_what_was_prepared_for_machines_of_another_kind() -> None:
    of_spark, of_laptop = (wanted_by(load_settings(), kind) for kind in ("aarch64", "x86_64"))
    assert of_spark == of_laptop


@pytest.mark.parametrize("name", ["cpu-0.25", "cpu-0.32", "cuda-0.19", "cuda-0.25", "cuda-0.33"])
def test_fingerprints_do_not_depend_on_where_they_are_computed(
    shipped: Library, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    engine = load_engine(shipped, name)
    found = {}
    for processor in ("x86_64", "aarch64"):
        monkeypatch.setattr("platform.machine", lambda processor=processor: processor)
        found[processor] = {
            (architecture, source): _marks(engine, architecture, source)
            for architecture in ("x86_64", "aarch64")
            for source in BASE_SOURCES
        }
    assert found["x86_64"] == found["aarch64"]


def _marks(engine: Any, architecture: Any, source: Any) -> list[str]:
    try:
        stages = made_stages(engine, source, architecture)
    except BuildError as error:
        return [error.message]
    return [stage.fingerprint for stage in stages]
