"""The deployment that is spoken to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.deploy.deployments import require_deployment
from sparkdeploy.deploy.names import said
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.serving import model_of, require_answers
from sparkdeploy.errors import NodeError

if TYPE_CHECKING:
    from sparkdeploy.server.client import ServedModel
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Partner:
    deployment: str
    model: ServedModel


def reach_partner(name: str | None, command: str, settings: Settings, behind: str = "") -> Partner:
    """Return a deployment that answers; without a name the only one.

    `command` is what was typed, and `behind` what follows the name. Raises NodeError where there is
    none of that name, UsageError where one has to be named, and UnhealthyError while it starts or
    when it is down.
    """
    chosen = said(name, command.split(), behind)
    with connect(settings) as host:
        fact = require_deployment(host, chosen).current
    if fact.rank and fact.nodes:
        raise NodeError(
            f"this machine is only a worker of {fact.deployment}, which {fact.nodes[0]} heads",
            hint=f"run the same command there: --on {fact.nodes[0]}",
        )
    model = model_of(fact, settings)
    require_answers(fact, model)
    return Partner(fact.deployment, model)
