"""The plan: its steps and problems, as data that is printed and applied unchanged."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from sparkdeploy.checks.finding import Verdict, said
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.recipe.image_name import is_tag
from sparkdeploy.recipe.image_pins import InspectedEngine
from sparkdeploy.terminal.step import PlannedStep

if TYPE_CHECKING:
    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.estimate.memory import MemoryClaim
    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.container import ContainerFact, ContainerSpec
    from sparkdeploy.plan.container import Deployment, HostFolders
    from sparkdeploy.plan.observed import Observed
    from sparkdeploy.plan.topology import NodeRank, Topology
    from sparkdeploy.recipe.load import Resolved

BUDGET_CHECK = "machine.room"


class Action(Enum):
    """What a step does; the value is the sign it is printed with."""

    REUSE = "="
    BUILD = "+"
    FETCH = "v"
    PREPARE = "*"
    START = ">"
    REPLACE = "~"

    @property
    def is_work(self) -> bool:
        return self is not Action.REUSE


@dataclass(frozen=True, slots=True)
class ImageStep:
    stage: Stage
    action: Literal[Action.REUSE, Action.BUILD, Action.FETCH]
    """FETCH: of a tag that nobody has asked for yet."""
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointStep:
    """What vLLM mounts: the download itself, a finished overlay, or one to be prepared."""

    action: Literal[Action.REUSE, Action.PREPARE, Action.FETCH]
    reason: str
    write_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Needs:
    """What a rank takes from its node; None where it cannot be known yet."""

    image_bytes: int | None
    """On Docker's disk while images are built or loaded; 0 when all are there."""
    download_bytes: int | None
    write_bytes: int | None
    memory_bytes: int | None = None
    sent_bytes: int | None = 0
    """From the head to this node, before compression."""
    weights_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node does: its container is kept, started, or put in the place of an older one."""

    rank: NodeRank
    action: Literal[Action.REUSE, Action.START, Action.REPLACE]
    reason: str
    spec: ContainerSpec | None
    """None as long as the model is missing, whose owner decides the container's user, and for a
    node that does not answer."""
    folders: HostFolders | None
    claim: MemoryClaim | None
    """None where the node's memory is not known."""
    needs: Needs
    stopped: ContainerFact | None = None
    """The very container that is asked for, stopped: it starts again, and none is made."""

    @property
    def node(self) -> str:
        return self.rank.node


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything `up` will do, in order."""

    resolved: Resolved
    deployment: Deployment
    topology: Topology
    folders: HostFolders
    """The head's."""
    observed: Observed
    images: tuple[ImageStep, ...]
    checkpoint: CheckpointStep
    nodes: tuple[NodePlan, ...] = ()
    """One a node, by rank."""
    findings: tuple[Finding, ...] = ()

    @property
    def head(self) -> NodePlan:
        return self.nodes[0]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.resolved.recipe.serve.port}"

    @property
    def is_unchecked(self) -> bool:
        """Whether nobody could say how much memory the model takes."""
        return any(
            item.check == BUDGET_CHECK and item.verdict is Verdict.NOT_SEEN
            for item in self.findings
        )

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What must be solved before it can be applied."""
        return tuple(item for item in self.findings if item.verdict is Verdict.FAIL)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(item for item in self.findings if item.verdict is Verdict.WARN)

    @property
    def prepares(self) -> bool:
        """Whether images or the checkpoint are to be made or sent."""
        actions = [self.checkpoint.action, *(step.action for step in self.images)]
        sends = any(planned.needs.sent_bytes != 0 for planned in self.nodes)
        return sends or any(action.is_work for action in actions)

    @property
    def has_work(self) -> bool:
        return self.prepares or any(planned.action.is_work for planned in self.nodes)


def awaited_preparation(plan: Plan) -> list[PlannedStep]:
    """Return what is to be made before containers start, as the steps that make it are called."""
    images = [step.stage for step in plan.images if step.action is Action.BUILD]
    awaited = [PlannedStep(f"image {stage.name}") for stage in images]
    if plan.checkpoint.action is Action.PREPARE:
        awaited.append(PlannedStep("checkpoint overlay"))
    return awaited


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values for `--json`; `container` and `needs` are the head's."""
    recipe, model, is_here = plan.resolved.recipe, plan.observed.model, not plan.observed.missing
    specs = {it.node: asdict(it.spec) if it.spec is not None else None for it in plan.nodes}
    return {
        "schema": 1,
        "recipe": recipe.name,
        "engine": plan.resolved.engine.name,
        "deployment": plan.deployment.name,
        "exposure": plan.deployment.exposure,
        "node": plan.head.node,
        "images": [
            {"stage": step.stage.name, "tag": step.stage.tag, **_done_and_why(step)}
            for step in plan.images
        ],
        "checkpoint": {
            **_done_and_why(plan.checkpoint),
            "model": recipe.model.source,
            "path": str(model.root) if isinstance(model, ModelFact) and is_here else None,
            "write_bytes": plan.checkpoint.write_bytes,
        },
        "container": {**_done_and_why(plan.head), "spec": specs[plan.head.node]},
        "topology": asdict(plan.topology),
        "ranks": [
            {
                "node": planned.node,
                "rank": planned.rank.number,
                **_done_and_why(planned),
                "needs": asdict(planned.needs),
            }
            for planned in plan.nodes
        ],
        "nodes": specs,
        "needs": asdict(plan.head.needs),
        "checks": [asdict(check) for check in plan.observed.checks],
        "problems": [{**said(item), "blocks": item.blocks} for item in plan.problems],
        "warnings": [said(item) for item in plan.warnings],
        "unobserved": list(plan.observed.unobserved),
        "mods": [mod.name for mod in recipe.mods],
        "image": _image_as_dict(plan),
        "import": plan.resolved.translation.as_dict() if plan.resolved.translation else None,
        "has_work": plan.has_work,
    }


def _image_as_dict(plan: Plan) -> dict[str, Any] | None:
    """Return what an image of others is and holds; None for an engine of ours."""
    engine, name = plan.resolved.engine, plan.resolved.image
    if name is None:
        return None
    contents = engine.contents if isinstance(engine, InspectedEngine) else None
    holds = asdict(replace(contents, release=None)) if contents is not None else {}
    holds.pop("release", None)
    return {"name": name, "pinned": None if is_tag(engine.image) else engine.image, "holds": holds}


def _done_and_why(step: ImageStep | CheckpointStep | NodePlan) -> dict[str, str]:
    return {"action": step.action.name.lower(), "reason": step.reason}
