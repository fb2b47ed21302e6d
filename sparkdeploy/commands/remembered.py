"""What was typed for a deployment, kept on its container: `update` plans it once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from sparkdeploy import labels
from sparkdeploy.commands.reach import Reach
from sparkdeploy.commands.request import Request, from_anywhere, sets_variables
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.launch import Exposure

if TYPE_CHECKING:
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.settings import Settings

MAX_CHARACTERS = 64 * 1024
"""What is longer breaks off and is no JSON: anybody may write a label."""


class TypedBefore(BaseModel):
    """The label: a recipe as it means the same in every folder, and the overrides."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    recipe: str
    set: list[str] = []
    is_rehearsal: bool = False

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the paths whose values are kept nowhere."""
        return tuple(item for item in self.set if "=" not in item)


def request_label(request: Request, settings: Settings) -> str:
    """Return the label. Any variable of `serve.env` may be a secret: of what sets one, as the
    loader reads it, the path stays alone.
    """
    typed = TypedBefore(
        recipe=from_anywhere(request.recipe, settings),
        set=[_without_secret(item) for item in request.assignments],
        is_rehearsal=request.is_rehearsal,
    )
    return typed.model_dump_json()


def typed_before(fact: ContainerFact) -> TypedBefore | None:
    """Return what was typed; None for a container of an earlier version, or a damaged label."""
    try:
        written = fact.labels.get(labels.REQUEST, "")[:MAX_CHARACTERS]
        return TypedBefore.model_validate_json(written)
    except ValueError:
        return None


def request_again(fact: ContainerFact, typed: TypedBefore | None) -> Request:
    """Return the same request; of an earlier version's container by its recipe's name alone."""
    is_public = fact.labels.get(labels.EXPOSURE) == Exposure.PUBLIC.value
    exposure = Exposure.PUBLIC if is_public else Exposure.LOOPBACK
    recipe = typed.recipe if typed is not None else fact.labels.get(labels.RECIPE, "")
    assignments = tuple(typed.set) if typed is not None else ()
    reach = Reach.CLUSTER if fact.nodes else Reach.HERE
    return Request(recipe, assignments, Deployment(fact.deployment, exposure), reach)


def _without_secret(assignment: str) -> str:
    return assignment.partition("=")[0].strip() if sets_variables(assignment) else assignment
