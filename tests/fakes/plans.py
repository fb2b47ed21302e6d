"""Facts for plan tests: a Spark, a laptop, a model on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkdeploy import labels
from sparkdeploy.image.lock import Architecture
from sparkdeploy.image.stages import BaseSource, Stage, stages_of
from sparkdeploy.node.container import ContainerFact, ContainerSpec, ImageFact
from sparkdeploy.node.facts import GpuFact, NodeFact
from sparkdeploy.node.reports import EngineInfo
from sparkdeploy.plan.container import Deployment, HostFolders
from sparkdeploy.plan.make import make_plan
from sparkdeploy.plan.observed import ModelFact, Observed, ObservedNode, OverlayFact
from sparkdeploy.plan.steps import Plan
from sparkdeploy.recipe.answers import planned_answers
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.load import Library, Resolved, load_recipe
from tests.launching import container_spec
from tests.unit.conftest import REPOSITORY

GIB = 2**30
IMAGE = "sparkdeploy/plugin:0123456789abcdef"
FOLDERS = HostFolders(
    cache=Path("/home/ada/.cache/sparkdeploy/engines/0123456789abcdef/1000-1000"),
    key_file=Path("/home/ada/.local/state/sparkdeploy/keys/main"),
)
DOCKER = EngineInfo(
    name="spark",
    version="28.3",
    root_dir="/var/lib/docker",
    architecture="aarch64",
    memory_bytes=128 * GIB,
    cpu_count=20,
    has_nvidia_runtime=True,
)
SPARK = NodeFact(
    name="spark",
    architecture="aarch64",
    memory_total_bytes=119 * GIB,
    memory_available_bytes=112 * GIB,
    gpu=GpuFact("NVIDIA GB10", "12.1"),
    docker=DOCKER,
    docker_free_bytes=900 * 10**9,
    data_free_bytes=900 * 10**9,
)
LAPTOP = replace(
    SPARK,
    name="laptop",
    architecture="x86_64",
    memory_total_bytes=16 * GIB,
    memory_available_bytes=12 * GIB,
    gpu=None,
    docker=replace(DOCKER, has_nvidia_runtime=False),
)


def model_fact(*, treated: bool = True, **changes: Any) -> ModelFact:
    """The 122B model of a user in the hub's cache, with a finished overlay if treated."""
    overlay = OverlayFact(Path("/home/ada/.local/share/sparkdeploy/m/ck/qwen-0123456789ab"), True)
    fact = ModelFact(
        name="models--Intel--Qwen3.5-122B-A10B-int4-AutoRound",
        root=Path("/home/ada/.cache/huggingface/hub/models--Intel--Qwen3.5"),
        files="snapshots/de5e04f2",
        revision="de5e04f2",
        size_bytes=72 * 10**9,
        owner_uid=1000,
        owner_gid=1000,
        overlay=overlay if treated else None,
    )
    return replace(fact, **changes)


def drafter_fact() -> ModelFact:
    """The DFlash drafter in the hub's cache."""
    return model_fact(
        treated=False,
        name="models--z-lab--Qwen3.5-122B-A10B-DFlash",
        root=Path("/home/ada/.cache/huggingface/hub/models--z-lab--Qwen3.5-122B-A10B-DFlash"),
        files="snapshots/0a1b2c3d",
        size_bytes=10**9,
    )


def observed(**changes: Any) -> Observed:
    """A Spark with the model and nothing else; `node`, `images` and `containers` are the head's."""
    node = ObservedNode(
        changes.pop("node", SPARK), changes.pop("images", {}), changes.pop("containers", ())
    )
    seen = Observed(nodes=(node,), base_source="registry", model=model_fact())
    return replace(seen, **changes)


def changed(facts: Observed, **changes: Any) -> Observed:
    """The same with another head: its `node`, `images` or `containers`."""
    if "node" in changes:
        changes["facts"] = changes.pop("node")
    return replace(facts, nodes=(replace(facts.head, **changes), *facts.nodes[1:]))


def running(spec: ContainerSpec, *, state: str = "running") -> ContainerFact:
    """The container a spec describes, as Docker would report it."""
    return ContainerFact(
        container_id="c" * 64,
        name=spec.name,
        image_id="sha256:0",
        state=state,
        labels={**spec.labels, labels.FINGERPRINT: spec.fingerprint()},
    )


def built(stage: Any) -> ImageFact:
    """The image of a stage, as Docker would report it."""
    return ImageFact("sha256:0", (stage.tag,), stage.labels(), 10**9)


def made_stages(
    engine: Engine,
    source: BaseSource = "registry",
    architecture: Architecture = "aarch64",
    **more: Any,
) -> tuple[Stage, ...]:
    """Return an engine's stages, for a Spark where nothing else is said."""
    return stages_of(
        engine, base_source=source, architecture=architecture, resources=REPOSITORY, **more
    )


def plan(shipped: Library, facts: Observed, recipe: str = "v2", *settings: str) -> Plan:
    """Return what would be done about a shipped recipe, with these facts."""
    resolved = load_recipe(shipped, recipe, settings)
    stages = made_stages(resolved.engine, facts.base_source, facts.head.facts.architecture)
    return make_plan(resolved, facts, stages=stages, deployment=Deployment("main"), folders=FOLDERS)


def spec_of(resolved: Resolved, *, is_public: bool = False) -> ContainerSpec:
    checkpoint = resolved.recipe.checkpoint
    is_stock = checkpoint.fp8_dense.mode == "off" and checkpoint.lm_head == "bf16"
    speculative = resolved.recipe.serve.speculative
    has_drafter = speculative is not None and speculative.model is not None
    return container_spec(
        resolved,
        model_fact(answers=planned_answers(resolved.recipe.serve, {}), treated=not is_stock),
        drafter_fact() if has_drafter else None,
        image=IMAGE,
        deployment=Deployment("main", is_public=is_public),
        folders=FOLDERS,
    )
