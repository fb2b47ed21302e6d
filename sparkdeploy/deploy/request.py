"""What a user typed, and what a plan of it needs: its image, pinned, and its models, downloaded."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import labels
from sparkdeploy.checkpoint.cache import STORE, require_links
from sparkdeploy.checkpoint.fp8_shard import resolve_fp8
from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock, find_pinned, pin_found
from sparkdeploy.checkpoint.pull import WantedRepository, announce, fetch, planned_downloads
from sparkdeploy.deploy.deployments import (
    find_deployment,
    refuse_as_worker,
    require_deployment,
)
from sparkdeploy.deploy.nodes import connect, needed_nodes
from sparkdeploy.deploy.serving import ServedDeployment, served_by
from sparkdeploy.errors import BuildError, CheckpointError, NodeError, RecipeError, UsageError
from sparkdeploy.node.cluster import open_nodes, this_node
from sparkdeploy.node.facts import is_another
from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.images import stages_for
from sparkdeploy.plan.make import decide, draft_plan
from sparkdeploy.plan.models import conversion_of
from sparkdeploy.plan.observe import with_expected_models
from sparkdeploy.plan.observed import MissingModel
from sparkdeploy.plan.steps import for_cluster
from sparkdeploy.recipe.document import is_set
from sparkdeploy.recipe.image_name import is_tag
from sparkdeploy.recipe.image_pins import ImageLock, ImagePin, InspectedEngine
from sparkdeploy.recipe.library import is_path, library, of_source
from sparkdeploy.recipe.load import Resolved, load_recipe
from sparkdeploy.recipe.paths import with_whole_path
from sparkdeploy.recipe.weights import Drafter
from sparkdeploy.recipe.words import shown
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sparkdeploy.image.pins import ImageInspector
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.schema import Recipe
    from sparkdeploy.settings import Settings

PORT, NAMES = "serve.port", "model.served_name"
OTHER_FORMATS = frozenset({"gguf", "mistral", "npcache", "pt", "sharded_state"})
"""Values of `load_format` for other files than vLLM reads without one."""


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
    """Load the recipe with everything it inherits; `unpinned` as if no tag were known yet."""
    shelf = library(settings)
    if images is not None or unpinned:
        shelf = replace(shelf, images=images)
    resolved = load_recipe(shelf, request.recipe, request.assignments)
    return for_cluster(resolved) if request.cluster else resolved


def sets_variables(assignment: str) -> bool:
    try:
        return is_set("serve.env", assignment)
    except RecipeError:
        return True  # no loader of ours reads it: who knows what it holds


def as_label(request: Request, settings: Settings) -> str:
    """Return what was typed, as the container keeps it; empty where it may hold a secret."""
    if any(map(sets_variables, request.assignments)):
        return ""
    recipe = from_anywhere(request.recipe, settings)
    whole = [with_whole_path(item, Path()) for item in request.assignments]
    return json.dumps([recipe, whole, request.cluster])


def deployed_request(name: str, settings: Settings) -> Request | None:
    """Return what a deployment was started with; NodeError for one that does not say so."""
    try:
        with connect(settings) as host:
            found = find_deployment(host, name)
    except NodeError:
        return None  # without Docker here it can only be a recipe's name
    if found is None:
        return None
    refuse_as_worker(found)
    fact = found.current
    try:
        recipe, assignments, is_cluster = json.loads(fact.labels.get(labels.REQUEST) or "")
    except ValueError as error:
        raise NodeError(
            f"{name} does not say what it was started with",
            hint=f"name the recipe: {fact.labels.get(labels.RECIPE, 'RECIPE')} --name {name}",
        ) from error
    is_public = fact.labels.get(labels.EXPOSURE) == labels.PUBLIC
    return Request(recipe, tuple(assignments), Deployment(name, is_public), is_cluster)


def up_words(request: Request) -> list[str]:
    """Return the `up` that means this request, without the program's name."""
    words = ["up", request.recipe]
    words += [word for item in request.assignments for word in ("--set", item)]
    if request.cluster:
        words.append("--cluster")
    if request.deployment.name != "main":
        words += ["--name", request.deployment.name]
    if request.deployment.is_public:
        words.append("--public")
    return words


def plan_for(request: Request, settings: Settings, *, unasked: bool = False) -> Plan:
    """Observe and decide; Docker, a GPU and a network may all be absent. `unasked`: to show it."""
    shelf = library(settings)
    resolved = load_recipe(shelf, request.recipe, request.assignments, unasked=unasked)
    resolved = for_cluster(resolved) if request.cluster else resolved
    needed = needed_nodes(resolved, settings) if request.cluster else None
    opened = this_node(settings) if needed is None else open_nodes(settings, needed)
    with opened as nodes:
        return draft_plan(resolved, settings, nodes, request.deployment)


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
    if is_path(recipe):
        return str(Path(recipe).expanduser().absolute())
    return recipe


def served_at(name: str, settings: Settings) -> ServedDeployment:
    """Return how clients ask a deployment; NodeError for one whose key is another user's."""
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
    """Return the request as one that answers there; what it sets itself goes before."""
    # It gets aliases alone: who asks for the old model by its own name is told that it has gone.
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
    deployment = replace(request.deployment, is_public=served.key_file is not None)
    return replace(request, assignments=(*taken, *given), deployment=deployment)


def with_known_image(
    plan: Plan,
    request: Request,
    settings: Settings,
    host: DockerHost,
    *,
    update: bool,
    image_id: str | None = None,
) -> Resolved:
    """Pin a plan's image and inspect it; return the recipe for what the image holds."""
    resolved = plan.resolved
    if image_id is not None and resolved.image is None:
        raise UsageError(f"{resolved.recipe.name} names no image that --image-id could be")
    is_known = isinstance(resolved.engine, InspectedEngine) and not update and image_id is None
    if resolved.engine.kind != "image" or is_known:
        return resolved
    # It builds: the usual `up` is there sooner without all that.
    from sparkdeploy.image.pins import ImageInspector  # noqa: PLC0415

    inspector = ImageInspector(host, plan.observed.head.facts.architecture, settings)
    return pin_image(resolved, request, inspector, update=update, image_id=image_id)


def pin_image(
    resolved: Resolved,
    request: Request,
    inspector: ImageInspector,
    *,
    update: bool = False,
    image_id: str | None = None,
) -> Resolved:
    """Pin and inspect the image of a request's recipe; return the recipe for what it holds."""
    # A tag is pinned only once its image was looked into, so never to one that does not serve.
    from sparkdeploy.image import pins  # noqa: PLC0415 - as above

    name, settings = resolved.image, inspector.settings
    if resolved.engine.kind != "image" or name is None:
        return resolved
    asks = is_tag(name) and update
    if isinstance(resolved.engine, InspectedEngine) and not asks and image_id is None:
        return resolved
    before = ImageLock(settings.state_dir).pin_of(name)
    pin = before
    if image_id is not None:
        pin = inspector.take_loaded(name, image_id)
    elif is_tag(name) and (asks or before is None):
        pin = inspector.ask_registry(name) if asks else inspector.pin(name)
    images = ImageLock(settings.state_dir, {name: pin} if pin is not None else {})
    known = _inspected(request, inspector, images, is_new=pin is not before)
    if pin is not None and pin != before and inspector.platform is None:
        if before is not None:
            _print_changes(name, before, known, settings)
        pins.keep(settings, name, pin)
    return known


def _inspected(
    request: Request, inspector: ImageInspector, images: ImageLock, *, is_new: bool
) -> Resolved:
    """Return the recipe for what an image holds; BuildError for one that cannot serve."""
    known = resolve(request, inspector.settings, images)
    if isinstance(known.engine, InspectedEngine):
        return known
    stages = stages_for(known, base_source="registry", architecture=inspector.architecture)
    # A hint to ask the registry again is of no use for what it has just answered.
    first = replace(stages[0], pinned_tag="") if is_new else stages[0]
    contents = inspector.inspect(known.engine, first)
    found = {known.engine.image or "": contents}
    return resolve(request, inspector.settings, replace(images, found=found))


def refuse_missing_mods(resolved: Resolved) -> None:
    missing = [mod.name for mod in resolved.mods if mod.is_missing]
    if missing:
        raise BuildError(
            f"mods are not here: {', '.join(map(shown, missing))}",
            hint="`sparkdeploy plan` says where they were looked for; --set mods=[] does without",
        )


def _print_changes(name: str, before: ImagePin, known: Resolved, settings: Settings) -> None:
    from sparkdeploy.image.pins import differences  # noqa: PLC0415

    if known.engine.image == before.image:
        console.info(f"{name} is unchanged: {before.image}")
        return
    console.info(f"{name} was {before.image} since {before.pinned_at}; it is pinned anew to")
    console.info(f"  {known.engine.image}")
    if isinstance(known.engine, InspectedEngine):
        known_before = ImageLock(settings.state_dir).contents(before.image)
        for line in differences(known_before, known.engine.contents):
            console.info(f"  {line}")


def repositories_of(
    name: str, settings: Settings, assignments: Sequence[str] = ()
) -> list[WantedRepository]:
    recipe = resolve(Request(name, tuple(assignments)), settings).recipe
    return _each_once(_repositories(recipe, settings))


def bring_models(
    plan: Plan, settings: Settings, consent: Callable[[str], bool], *, may_download: bool = True
) -> bool:
    """Fetch the models a plan lacks, after asking; say whether the plan must be made anew."""
    recipe, observed = plan.resolved.recipe, plan.observed
    lock = HubLock(settings.state_dir)
    wanted = _each_once(_repositories(recipe, settings))
    for item in wanted:
        if source := find_pinned(item.repo, item.revision, settings.hub_cache, lock):
            pin_found(source, item.revision, lock)
    resolved_anew = resolve_fp8(recipe.checkpoint, settings)
    absent = {
        (model.repo, model.revision)
        for model in (observed.model, *observed.companions)
        if isinstance(model, MissingModel)
    }
    if not absent:
        return resolved_anew
    if not may_download:
        # Its disk may be late, and its folder the empty one beneath.
        raise CheckpointError(
            f"{' and '.join(repo for repo, _ in sorted(absent))} is not below "
            f"{settings.hub_cache}, and with --stay nothing is downloaded: is its disk there?",
            hint=f"findmnt -T {shlex.quote(str(settings.hub_cache))}; to download it: "
            f"sparkdeploy up {plan.resolved.called} --prepare",
        )
    if not conversion_of(recipe, settings).is_none:
        # An overlay of what is fetched lies there.
        require_links(settings.data_dir)
    hub = open_hub(settings)
    downloads = [
        announce(hub, lock, item, anew=False)
        for item in wanted
        if (item.repo, item.revision) in absent
    ]
    names = " and ".join(download.facts.repo for download in downloads)
    size = format_bytes(sum(download.missing_bytes for download in downloads))
    if not consent(f"Download {names} ({size})?"):
        raise CheckpointError(
            f"{names} is not on this machine ({size} to download)",
            hint="say yes, or pass --yes; or `sparkdeploy checkpoint pull "
            f"{shlex.quote(downloads[0].facts.repo)}` first",
        )
    console.expect(*planned_downloads(downloads))
    for download in downloads:
        fetch(hub, lock, download)
    return True


def _each_once(repositories: Iterable[WantedRepository]) -> list[WantedRepository]:
    """Return each repository once: a drafter may be a folder of the model's own."""
    found: dict[tuple[str, str], WantedRepository] = {}
    for item in repositories:
        key = item.repo, item.revision
        first = found.setdefault(key, item)
        found[key] = replace(first, folders=tuple(dict.fromkeys((*first.folders, *item.folders))))
    return list(found.values())


def _repositories(recipe: Recipe, settings: Settings) -> Iterator[WantedRepository]:
    if recipe.model.path is None:
        is_hybrid = recipe.checkpoint.fp8_dense.is_finished
        conversion = conversion_of(recipe, settings) if is_hybrid else None
        yield WantedRepository(
            recipe.model.source,
            recipe.model.revision,
            all_files=recipe.serve.load_format in OTHER_FORMATS,
            conversion=conversion,
        )
    for weights in recipe.companions:
        if weights.path is None:
            folder = weights.subfolder if isinstance(weights, Drafter) else None
            folders = () if folder is None else (folder,)
            yield WantedRepository(weights.source, weights.revision, folders=folders)
