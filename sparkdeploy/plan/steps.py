"""The plan: its steps and problems, as data that is printed and applied unchanged."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from sparkdeploy.checks.finding import Verdict
from sparkdeploy.plan.observed import ModelFact

if TYPE_CHECKING:
    from sparkdeploy.checks.finding import Finding
    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.container import ContainerSpec
    from sparkdeploy.plan.container import Deployment, HostFolders
    from sparkdeploy.plan.observed import MissingModel, Observed
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Model


class Action(Enum):
    """What a step does; the value is the sign it is printed with."""

    REUSE = "="
    BUILD = "+"
    FETCH = "v"
    PREPARE = "*"
    START = ">"
    REPLACE = "!"

    @property
    def is_work(self) -> bool:
        """Say whether applying the step changes anything."""
        return self is not Action.REUSE


@dataclass(frozen=True, slots=True)
class ImageStep:
    """One image stage: reused by fingerprint, or built."""

    stage: Stage
    action: Literal[Action.REUSE, Action.BUILD]
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointStep:
    """What vLLM mounts: the download itself, a finished overlay, or one to be prepared."""

    action: Literal[Action.REUSE, Action.PREPARE, Action.FETCH]
    reason: str
    model: ModelFact | MissingModel | None
    write_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ContainerStep:
    """The serving container: kept, started, or put in the place of an older one."""

    action: Literal[Action.REUSE, Action.START, Action.REPLACE]
    reason: str
    spec: ContainerSpec | None
    """None as long as the model is missing: its owner decides the container's user."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that must be settled before the plan can be applied."""

    check: str
    """The stable id of the check that found it, as docs/doctor.md lists them."""
    subject: Literal["node", "checkpoint"]
    message: str
    fix: str
    blocks: Literal["prepare", "start"] = "start"
    """The first thing that cannot be done: `prepare` (and so start), or only the start."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the plan takes from the machine; None where it cannot be known yet."""

    image_bytes: int | None
    """On Docker's disk while images are built; 0 when all are there."""
    download_bytes: int | None
    write_bytes: int | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything `up` will do, in order."""

    resolved: Resolved
    deployment: Deployment
    folders: HostFolders
    observed: Observed
    images: tuple[ImageStep, ...]
    checkpoint: CheckpointStep
    container: ContainerStep
    needs: Needs
    problems: tuple[Problem, ...]
    findings: tuple[Finding, ...] = ()
    """What the doctor's checks say of the machine, good and bad; the failing are problems too."""

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Return what may hurt later and stops nothing."""
        return tuple(item for item in self.findings if item.verdict is Verdict.WARN)

    @property
    def has_work(self) -> bool:
        """Say whether applying the plan would change anything."""
        actions = [step.action for step in self.images]
        return any(a.is_work for a in (*actions, self.checkpoint.action, self.container.action))


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan as plain values for `--json`."""
    recipe = plan.resolved.recipe
    return {
        "schema": 1,
        "recipe": recipe.name,
        "engine": plan.resolved.engine.name,
        "deployment": plan.deployment.name,
        "exposure": plan.deployment.exposure.value,
        "node": plan.observed.node.name,
        "images": [
            {"stage": step.stage.name, "tag": step.stage.tag, **_done_and_why(step)}
            for step in plan.images
        ],
        "checkpoint": _checkpoint_as_dict(plan.checkpoint, recipe.model),
        "container": _container_as_dict(plan.container),
        "needs": asdict(plan.needs),
        "problems": [asdict(item) for item in plan.problems],
        "warnings": [
            {"check": item.check, "message": item.seen, "fix": item.fix} for item in plan.warnings
        ],
        "unobserved": list(plan.observed.unobserved),
        "has_work": plan.has_work,
    }


def _checkpoint_as_dict(step: CheckpointStep, model: Model) -> dict[str, Any]:
    return {
        **_done_and_why(step),
        "model": model.path or model.repo,
        "path": str(step.model.root) if isinstance(step.model, ModelFact) else None,
        "write_bytes": step.write_bytes,
    }


def _container_as_dict(step: ContainerStep) -> dict[str, Any]:
    spec = step.spec.as_dict() if step.spec is not None else None
    return {**_done_and_why(step), "spec": spec}


def _done_and_why(step: ImageStep | CheckpointStep | ContainerStep) -> dict[str, str]:
    return {"action": step.action.name.lower(), "reason": step.reason}
