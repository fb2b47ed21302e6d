"""What a start is held against, also when its plan is long gone: it travels on the container."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from sparkdeploy import labels
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate.memory_claim import MemoryClaim, memory_claim
from sparkdeploy.plan.backends import PlannedBackend, planned_backends
from sparkdeploy.plan.observed import ModelFact

if TYPE_CHECKING:
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.plan.steps import Plan


@dataclass(frozen=True, slots=True)
class Treatment:
    """What the plugin has to say that it converted."""

    fp8_layers: int
    lm_head: str
    draft_head_rows: int | None


@dataclass(frozen=True, slots=True)
class Expectation:
    """The memory that is taken, and what the engine's log has to show."""

    memory: MemoryClaim | None
    backends: tuple[PlannedBackend, ...]
    treatment: Treatment | None
    """None where the untouched download is served."""

    def as_label(self) -> str:
        """Return it as a label's value."""
        return json.dumps(asdict(self), sort_keys=True)


@functools.cache
def _reader() -> TypeAdapter[Expectation]:
    return TypeAdapter(Expectation)


def expectation_of(plan: Plan) -> Expectation:
    """Return what a plan promises, once its checkpoint is prepared.

    Raises CheckpointError when a prepared checkpoint has lost its manifest.
    """
    recipe, engine = plan.resolved.recipe, plan.resolved.engine
    return Expectation(
        memory=memory_claim(recipe, engine, plan.observed.node),
        backends=planned_backends(plan.resolved),
        treatment=_treatment(plan),
    )


def expectation_on(fact: ContainerFact) -> Expectation | None:
    """Return what a container was made with; None where the label is missing or is no such thing.

    An earlier version left none.
    """
    try:
        return _reader().validate_json(fact.labels[labels.EXPECTATION], strict=True)
    except (KeyError, ValueError):
        return None


def _treatment(plan: Plan) -> Treatment | None:
    model, recipe = plan.observed.model, plan.resolved.recipe
    if not isinstance(model, ModelFact) or model.overlay is None:
        return None
    manifest = read_manifest(Path(model.overlay.path))
    if manifest is None:
        raise CheckpointError(
            f"{model.overlay.path} has lost its manifest", hint=f"rm -r {model.overlay.path}"
        )
    head = recipe.checkpoint.draft_lm_head if recipe.serve.speculative is not None else None
    return Treatment(
        fp8_layers=manifest.fp8_layer_count,
        lm_head=manifest.treatment["lm_head"],
        draft_head_rows=head.rows if head is not None else None,
    )
