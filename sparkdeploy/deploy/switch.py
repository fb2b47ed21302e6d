"""`switch`: `up` of another recipe where a deployment answers, so that its clients stay."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.deploy.deployments import refuse_as_worker, require_deployment
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.request import resolve
from sparkdeploy.deploy.serving import served_by
from sparkdeploy.errors import NodeError
from sparkdeploy.node.facts import is_another
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.recipe.document import is_set

if TYPE_CHECKING:
    from sparkdeploy.deploy.request import Request
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.settings import Settings

PORT, NAMES = "serve.port", "model.served_name"


@dataclass(frozen=True, slots=True)
class Address:
    """Where and how clients ask a deployment."""

    port: int
    exposure: Exposure
    aliases: tuple[str, ...]
    """What else requests call it than by its own model's name, which is the first."""
    cluster: bool


def address_of(name: str, settings: Settings) -> Address:
    """Return the address of a deployment that runs or is stopped.

    Raises NodeError without one, and for one whose key is another user's.
    """
    with connect(settings) as host:
        found = require_deployment(host, name)
    refuse_as_worker(found)
    fact = found.current
    _refuse_anothers_key(fact)
    served = served_by(fact, settings)
    return Address(
        port=served.port,
        exposure=Exposure.PUBLIC if served.key_file is not None else Exposure.LOOPBACK,
        aliases=served.models[1:],
        cluster=bool(fact.nodes),
    )


def _refuse_anothers_key(fact: ContainerFact) -> None:
    """A key stays in its user's own folder: the caller's would be another, and no client has it."""
    is_public = fact.labels.get(labels.EXPOSURE) == Exposure.PUBLIC.value
    if is_public and is_another(fact.user):
        raise NodeError(
            f"{fact.deployment} is public and {fact.user} deployed it: its clients have a key "
            "that only that user can keep",
            hint=f"have {fact.user} switch it, or replace it under your own key: "
            f"`sparkdeploy up RECIPE --name {fact.deployment} --public`",
        )


def at_address(request: Request, address: Address, settings: Settings) -> Request:
    """Return the request as one that answers there; what it sets itself goes before.

    The new model keeps its own name and gets the aliases: a client that asks for the old model by
    its name learns that it is not there, and never answered by another one.
    """
    given = [item for item in request.assignments if item]
    taken: list[str] = []
    if not any(is_set(PORT, item) for item in given):
        taken.append(f"{PORT}={address.port}")
    if address.aliases and not any(is_set(NAMES, item) for item in given):
        own = resolve(request, settings).recipe.model.served_names
        names = dict.fromkeys((*own, *address.aliases))
        if len(names) > len(own):
            taken.append(f"{NAMES}={json.dumps([*names])}")
    deployment = replace(request.deployment, exposure=address.exposure)
    return replace(request, assignments=(*taken, *given), deployment=deployment)
