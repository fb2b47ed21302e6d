"""From a recipe's name to the plan for this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError, RecipeError
from sparkdeploy.image.stages import stages_of
from sparkdeploy.plan.caches import cache_folder, caches_of_engines, refuse_nesting
from sparkdeploy.plan.container import Deployment, HostFolders
from sparkdeploy.plan.make import make_plan
from sparkdeploy.plan.observe import observe
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.plan.observed import Observed
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Request:
    """What the user typed: a recipe, values to override, and the deployment's name and reach."""

    recipe: str
    assignments: tuple[str, ...] = ()
    deployment: Deployment = field(default_factory=lambda: Deployment("main"))


def library(settings: Settings) -> Library:
    """Return the folders of recipes, the user's before the shipped ones, and those of models."""
    return Library(
        (settings.config_dir / "recipes", resources() / "recipes"),
        (settings.hub_cache, settings.data_dir),
    )


def connect(settings: Settings) -> DockerHost:
    """Connect to the node's Docker Engine; raise NodeError when nobody answers."""
    from sparkdeploy.node.host import DockerHost  # noqa: PLC0415 - the SDK takes 0.2 s to import

    return DockerHost(settings.docker_host)


def connect_if_possible(settings: Settings) -> tuple[DockerHost | None, str]:
    """Connect, or return why not: a plan can be made without Docker."""
    try:
        return connect(settings), ""
    except NodeError as error:
        return None, error.message


def resolve(request: Request, settings: Settings) -> Resolved:
    """Load the recipe with everything it inherits; raise RecipeError with all mistakes."""
    return load_recipe(library(settings), request.recipe, request.assignments)


def draft_plan(
    resolved: Resolved, settings: Settings, host: DockerHost | None, deployment: Deployment
) -> Plan:
    """Observe the node and decide."""
    observed = observe(resolved, settings, host, deployment.exposure)
    return decide(resolved, settings, observed, deployment)


def decide(
    resolved: Resolved, settings: Settings, observed: Observed, deployment: Deployment
) -> Plan:
    """Return the plan for what was observed.

    Raises CheckpointError when the model's folder and sparkdeploy's own lie within each other.
    """
    refuse_nesting(observed, settings)
    stages = stages_of(
        resolved.engine,
        base_source=observed.base_source,
        architecture=observed.node.architecture,
        resources=resources(),
    )
    folders = _folders(resolved, settings, stages, observed=observed, deployment=deployment)
    return make_plan(resolved, observed, stages=stages, deployment=deployment, folders=folders)


def _folders(
    resolved: Resolved,
    settings: Settings,
    stages: tuple[Stage, ...],
    *,
    observed: Observed,
    deployment: Deployment,
) -> HostFolders:
    """Caches are keyed by the engine stage, so that a plugin change keeps compiled kernels."""
    engine_stage = next(stage for stage in stages if stage.name == "engine")
    return HostFolders(
        cache=cache_folder(
            caches_of_engines(settings),
            engine_stage.fingerprint,
            resolved=resolved,
            observed=observed,
            deployment=deployment.name,
            own_folders=library(settings).folders,
        ),
        key_file=settings.state_dir / "keys" / deployment.name,
        chat_template=_chat_template(resolved),
    )


def _chat_template(resolved: Resolved) -> Path | None:
    """Return the file, which stands beside the recipe that names it; Docker would make a folder."""
    template = resolved.recipe.serve.chat_template
    if template is None:
        return None
    path = Path(template).expanduser().resolve()
    if not path.is_file():
        origin = resolved.origins.get(("serve", "chat_template"))
        raise RecipeError(
            f"serve.chat_template: {path} is not a file", hint=f"it is named by {origin}"
        )
    return path
