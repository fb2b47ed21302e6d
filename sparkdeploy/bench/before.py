"""What served before a campaign: noted before the first `up`, and put back at the end."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkdeploy import labels
from sparkdeploy.atomic_files import write_private
from sparkdeploy.bench.campaign.folder import Before
from sparkdeploy.bench.endpoint import MAX_RECIPE_CHARACTERS
from sparkdeploy.deploy.deployments import find_deployment
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.removal import down
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.deploy.up import up
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.plan.container import Deployment
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.report import values_to_show
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import Settings

FILE = "before.yaml"
CONSENTS = ("allow_unsafe", "allow_known_bad")
"""A recipe cannot allow itself these; the user did when it was deployed."""


def note_before(deployment: str, settings: Settings) -> Before | None:
    """Return what serves under the name, if anything; NodeError for what could not be put back."""
    with connect(settings) as host:
        found = find_deployment(host, deployment)
        fact = found.serving if found is not None else None
        if fact is None or not fact.is_running:
            return None
        if fact.nodes:
            raise NodeError(
                f"{deployment} is served by several nodes, and a campaign measures one machine",
                hint=f"`sparkdeploy down {deployment}` first, or measure under another --name",
            )
        return _noted(host, fact)


def _noted(host: DockerHost, fact: ContainerFact) -> Before:
    try:
        written = fact.labels.get(labels.RECIPE_VALUES, "")[:MAX_RECIPE_CHARACTERS]
        recipe = Recipe.model_validate_json(written)
    except ValueError as error:
        raise NodeError(
            f"{fact.deployment} was started by an earlier sparkdeploy, and could not be put back",
            hint="`sparkdeploy up` its recipe once more, or measure under another --name",
        ) from error
    pairs = (str(item).partition("=") for item in host.inspect(fact.container_id)["Config"]["Env"])
    env = {name: value for name, _, value in pairs if name in recipe.serve.env}
    return Before(
        wanted=fact.labels.get(labels.RECIPE, recipe.name),
        values=json.loads(written),
        env=env,
        exposure=fact.labels.get(labels.EXPOSURE, "loopback"),
    )


def restored(
    before: Before, deployment: str, folder: Path, settings: Settings
) -> tuple[Resolved, Request]:
    """Return the recipe and the request that make what was noted, by name or by its values."""
    whole: dict[str, Any] = json.loads(json.dumps(before.values))
    whole["serve"]["env"] = dict(before.env)
    request = Request(before.wanted, (), Deployment(deployment, before.exposure == labels.PUBLIC))
    try:
        named = resolve(request, settings)
        request = replace(request, assignments=tuple(differences(_whole(named.recipe), whole)))
        named = resolve(request, settings)
        if _whole(named.recipe) == whole:
            return named, request
    except SparkdeployError:
        pass  # It is gone, or others' by now: the values are what counts.
    values = {name: value for name, value in whole.items() if name not in {*CONSENTS, "extends"}}
    # Its values are the user's own deployment's, wherever the file lies.
    consents = tuple(f"{it}=true" for it in CONSENTS if it == "allow_unsafe" or whole.get(it))
    path = folder / FILE
    write_private(path, json.dumps(values, indent=1) + "\n")
    request = replace(request, recipe=str(path), assignments=consents)
    try:
        return resolve(request, settings), request
    except SparkdeployError:
        path.unlink()
        raise


def put_back(before: Before | None, deployment: str, folder: Path, settings: Settings) -> str:
    """Make the deployment what it was and return that in words; raises as `up` and `down` do."""
    if before is None:
        down(deployment, missing_ok=True)
        return f"nothing served as {deployment} before, and nothing does now"
    resolved, request = restored(before, deployment, folder, settings)
    up(resolved, request, settings, confirm=lambda _question: True)
    return f"{deployment} serves {before.wanted} again"


def differences(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield what `--set` has to say to make the one of the other; JSON is YAML."""
    for name, value in wanted.items():
        there = now.get(name)
        if isinstance(value, dict) and isinstance(there, dict) and there:
            yield from (f"{name}.{rest}" for rest in differences(there, value))
        elif name not in now or there != value:
            yield f"{name}={json.dumps(value)}"


def _whole(recipe: Recipe) -> dict[str, Any]:
    values = values_to_show(recipe)
    values["serve"]["env"] = dict(recipe.serve.env)
    return values
