"""What a user typed: a recipe, values to override, the deployment's name, and which nodes serve."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.console import console
from sparkdeploy.deploy.cluster_record import ClusterRecord
from sparkdeploy.deploy.deployments import nodes_of
from sparkdeploy.errors import NodeError, RecipeError, UsageError
from sparkdeploy.node.cluster import configured, name_here, open_nodes, this_node
from sparkdeploy.node.ownership import KEPT_MARK, REPLACED_SUFFIX
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.draft import draft_plan
from sparkdeploy.plan.formation import for_cluster, form_up
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.recipe.library import library
from sparkdeploy.recipe.load import load_recipe
from sparkdeploy.recipe.schema import NAME_PATTERN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Nodes
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings


class Reach(Enum):
    """Who serves."""

    HERE = "this machine alone"
    CLUSTER = "as many nodes of config.yaml as the recipe needs, this machine as their head"


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be deployed, under which name, by whom."""

    recipe: str
    assignments: tuple[str, ...] = ()
    deployment: Deployment = field(default_factory=lambda: Deployment("main"))
    reach: Reach = Reach.HERE


def make_request(
    recipe: str | None,
    assignments: Iterable[str] | None,
    *,
    name: str,
    exposure: Exposure,
    settings: Settings,
    reach: Reach = Reach.HERE,
) -> Request:
    """Return the request; raise UsageError for a name Docker would not take."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(
            f"{name!r} is no deployment name", hint="use lower-case letters, digits, . _ -"
        )
    if name.endswith(REPLACED_SUFFIX) or KEPT_MARK in name:
        raise UsageError(
            f"{name!r} is no deployment name: {REPLACED_SUFFIX} and {KEPT_MARK}N mark containers "
            "that are being replaced or kept",
            hint="choose another name",
        )
    wanted = recipe or settings.default_recipe
    return Request(wanted, tuple(assignments or ()), Deployment(name, exposure), reach)


def resolve(request: Request, settings: Settings) -> Resolved:
    """Load the recipe with everything it inherits; raise RecipeError with all mistakes.

    For several nodes it has what its `cluster` section changes.
    """
    resolved = load_recipe(library(settings), request.recipe, request.assignments)
    return for_cluster(resolved) if request.reach is Reach.CLUSTER else resolved


def up_words(request: Request) -> list[str]:
    """Return the `up` that means this request, without the program's name."""
    words = ["up", _absolute(request.recipe)]
    words += [word for item in request.assignments for word in ("--set", item)]
    if request.reach is Reach.CLUSTER:
        words.append("--cluster")
    if request.deployment.name != "main":
        words += ["--name", request.deployment.name]
    if request.deployment.exposure is Exposure.PUBLIC:
        words.append("--public")
    return words


def connect(settings: Settings) -> DockerHost:
    """Connect to this machine's Docker Engine; raise NodeError when nobody answers."""
    from sparkdeploy.node.host import DockerHost  # noqa: PLC0415 - the SDK takes 0.2 s to import

    return DockerHost(settings.docker_host)


def plan_for(request: Request, settings: Settings) -> Plan:
    """Observe and decide; Docker, a GPU and a network may all be absent."""
    resolved = resolve(request, settings)
    with serving(resolved, request.reach, settings) as nodes:
        plan = draft_plan(resolved, settings, nodes, request.deployment)
        try:
            nodes.here.docker  # noqa: B018 - the reason why it does not answer
        except NodeError as error:
            unobserved = (error.message, *plan.observed.unobserved)
            return replace(plan, observed=replace(plan.observed, unobserved=unobserved))
        return plan


@contextlib.contextmanager
def serving(resolved: Resolved, reach: Reach, settings: Settings) -> Iterator[Nodes]:
    """Connect to the nodes that are to serve a recipe."""
    with contextlib.ExitStack() as opened:
        if reach is Reach.HERE:
            yield opened.enter_context(this_node(settings))
        else:
            yield opened.enter_context(open_nodes(settings, needed(resolved, reach, settings)))


def needed(resolved: Resolved, reach: Reach, settings: Settings) -> frozenset[str]:
    """Return the names of the nodes that serve a recipe together; none for a machine alone."""
    if reach is Reach.HERE:
        return frozenset()
    config = configured(settings)
    return frozenset(form_up(resolved, config, name_here(config)).nodes)


@contextlib.contextmanager
def everyone(
    settings: Settings, deployment: str, also: frozenset[str] = frozenset()
) -> Iterator[Nodes]:
    """Connect to this machine, to all that may have something of a deployment, and to `also`.

    Raises NodeError when the Docker Engine here does not answer. What cannot be known of nodes
    that only may have something is told, and costs nothing else.
    """
    noted = ClusterRecord.below(settings.state_dir).nodes(deployment)
    with contextlib.ExitStack() as opened:
        here = opened.enter_context(this_node(settings))
        names = {*also, *nodes_of(here.here.docker, deployment, noted)}
        if not names:
            yield here
            return
        try:
            nodes = opened.enter_context(open_nodes(settings, frozenset(names)))
        except (NodeError, RecipeError) as error:
            if also:
                raise
            console.warn(f"{error.message}; something of {deployment} may be on other nodes")
            nodes = here
        yield nodes


def _absolute(recipe: str) -> str:
    if recipe.startswith("-"):
        raise UsageError(f"{recipe!r} is no recipe")
    if recipe.endswith((".yaml", ".yml")) or os.sep in recipe:
        return str(Path(recipe).expanduser().absolute())
    return recipe
