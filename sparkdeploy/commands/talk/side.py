"""The deployment that is spoken to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.commands.reach import connect
from sparkdeploy.deploy.deployments import list_deployments, require_deployment
from sparkdeploy.deploy.serving import model_of, require_answers
from sparkdeploy.errors import NodeError, UsageError

if TYPE_CHECKING:
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.server.client import ServedModel
    from sparkdeploy.settings import Settings

DEFAULT = "main"


@dataclass(frozen=True, slots=True)
class Partner:
    deployment: str
    model: ServedModel


def reach_partner(name: str | None, settings: Settings) -> Partner:
    """Return a deployment that answers; without a name the only one.

    Raises NodeError where there is none of that name, UsageError where one has to be named, and
    UnhealthyError while it starts or when it is down.
    """
    with connect(settings) as host:
        fact = require_deployment(host, name or _only(host)).current
    if fact.rank and fact.nodes:
        raise NodeError(
            f"this machine is only a worker of {fact.deployment}, which {fact.nodes[0]} heads",
            hint=f"run the same command there: --on {fact.nodes[0]}",
        )
    model = model_of(fact, settings)
    require_answers(fact, model)
    return Partner(fact.deployment, model)


def _only(host: DockerHost) -> str:
    names = [found.name for found in list_deployments(host)]
    if not names:
        raise NodeError("nothing is deployed", hint="start with `sparkdeploy up`")
    if len(names) == 1:
        return names[0]
    if DEFAULT in names:
        return DEFAULT
    raise UsageError("which deployment?", hint=f"name one of {', '.join(names)}")
