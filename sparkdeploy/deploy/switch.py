"""`switch`: `up` of another recipe where a deployment answers, so that its clients stay."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.deploy.deployments import refuse_as_worker, require_deployment
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.request import resolve
from sparkdeploy.deploy.serving import ServedDeployment, served_by
from sparkdeploy.errors import NodeError
from sparkdeploy.node.facts import is_another
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.recipe.document import is_set

if TYPE_CHECKING:
    from sparkdeploy.deploy.request import Request
    from sparkdeploy.settings import Settings

PORT, NAMES = "serve.port", "model.served_name"


def served_at(name: str, settings: Settings) -> ServedDeployment:
    """Return where and how clients ask a deployment that runs or is stopped.

    Raises NodeError without one, and for one whose key is another user's.
    """
    with connect(settings) as host:
        found = require_deployment(host, name)
    refuse_as_worker(found)
    user, served = found.current.user, served_by(found.current, settings)
    # A key stays in its user's own folder: the caller's would be another, and no client has it.
    if served.key_file is not None and is_another(user):
        raise NodeError(
            f"{name} is public and {user} deployed it: its clients have a key that only that user "
            "can keep",
            hint=f"have {user} switch it, or replace it under your own key: "
            f"`sparkdeploy up RECIPE --name {name} --public`",
        )
    return served


def at_address(request: Request, served: ServedDeployment, settings: Settings) -> Request:
    """Return the request as one that answers there; what it sets itself goes before.

    The new model keeps its own name and gets the aliases: a client that asks for the old model by
    its name learns that it is not there, and never answered by another one.
    """
    given = [item for item in request.assignments if item]
    taken: list[str] = []
    if not any(is_set(PORT, item) for item in given):
        taken.append(f"{PORT}={served.port}")
    aliases = served.models[1:]
    if aliases and not any(is_set(NAMES, item) for item in given):
        own = resolve(request, settings).recipe.model.served_names
        names = dict.fromkeys((*own, *aliases))
        if len(names) > len(own):
            taken.append(f"{NAMES}={json.dumps([*names])}")
    exposure = Exposure.LOOPBACK if served.key_file is None else Exposure.PUBLIC
    deployment = replace(request.deployment, exposure=exposure)
    return replace(request, assignments=(*taken, *given), deployment=deployment)
