"""What a user typed: a recipe, values to override, the deployment's name, and who serves."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.cache import STORE
from sparkdeploy.deploy.nodes import needed_nodes
from sparkdeploy.errors import NodeError, RecipeError, UsageError
from sparkdeploy.node.cluster import open_nodes, this_node
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.plan.make import decide, draft_plan
from sparkdeploy.plan.observe import with_expected_models
from sparkdeploy.plan.topology import for_cluster
from sparkdeploy.recipe.document import is_set
from sparkdeploy.recipe.library import library, of_source
from sparkdeploy.recipe.load import load_recipe
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.image_pins import ImageLock
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Request:
    recipe: str
    assignments: tuple[str, ...] = ()
    deployment: Deployment = field(default_factory=lambda: Deployment("main"))
    cluster: bool = False
    """As many nodes of config.yaml as the recipe needs, this machine as their head."""


def resolve(
    request: Request, settings: Settings, images: ImageLock | None = None, *, unpinned: bool = False
) -> Resolved:
    """Load the recipe with everything it inherits; raise RecipeError with all mistakes.

    For several nodes it has what its `cluster` section changes. `images` says what tags mean
    instead of the state folder's own lock. `unpinned` loads it as if no tag were known yet: what
    one was may be what the recipe does not fit, and the registry will be asked anew.
    """
    shelf = library(settings)
    if images is not None or unpinned:
        shelf = replace(shelf, images=images)
    resolved = load_recipe(shelf, request.recipe, request.assignments)
    return for_cluster(resolved) if request.cluster else resolved


def sets_variables(assignment: str) -> bool:
    """Say whether a `--set` changes `serve.env`, of which any variable may be a secret."""
    try:
        return is_set("serve.env", assignment)
    except RecipeError:
        return True  # no loader of ours reads it: who knows what it holds


def up_words(request: Request) -> list[str]:
    """Return the `up` that means this request, without the program's name."""
    words = ["up", request.recipe]
    words += [word for item in request.assignments for word in ("--set", item)]
    if request.cluster:
        words.append("--cluster")
    if request.deployment.name != "main":
        words += ["--name", request.deployment.name]
    if request.deployment.exposure is Exposure.PUBLIC:
        words.append("--public")
    return words


def plan_for(request: Request, settings: Settings) -> Plan:
    """Observe and decide; Docker, a GPU and a network may all be absent."""
    resolved = resolve(request, settings)
    needed = needed_nodes(resolved, settings) if request.cluster else None
    opened = this_node(settings) if needed is None else open_nodes(settings, needed)
    with opened as nodes:
        plan = draft_plan(resolved, settings, nodes, request.deployment)
        try:
            nodes.here.docker  # noqa: B018 - the reason why it does not answer
        except NodeError as error:
            unobserved = (error.message, *plan.observed.unobserved)
            return replace(plan, observed=replace(plan.observed, unobserved=unobserved))
        return plan


def with_expected_paths(plan: Plan, settings: Settings) -> Plan:
    """Return the plan with containers for models that are to be downloaded, as they will be."""
    missing = plan.observed.missing
    if not missing:
        return plan
    names = " and ".join(model.repo for model in missing)
    console.info(
        f"not here yet: {names}; what stands in <...> is known after the download, and so is "
        f"which files of {settings.hub_cache / STORE} are mounted too"
    )
    resolved = plan.resolved
    observed = with_expected_models(plan.observed, resolved.recipe, settings)
    expected = decide(resolved, settings, observed, plan.deployment, plan.topology)
    # The rest of the plan stays as it is: there is a download to do.
    return replace(plan, nodes=expected.nodes)


def from_anywhere(recipe: str, settings: Settings) -> str:
    """SOURCE/RECIPE means the same in every folder, and a relative path does not."""
    if recipe.startswith("-"):
        raise UsageError(f"{recipe!r} is no recipe")
    if of_source(library(settings), recipe) is not None:
        return recipe
    if recipe.endswith((".yaml", ".yml")) or os.sep in recipe:
        return str(Path(recipe).expanduser().absolute())
    return recipe
