"""What a plan needs from elsewhere: its image, pinned by digest, and its models, downloaded."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.fp8_shard import resolve_fp8
from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock, find_pinned, pin_found
from sparkdeploy.checkpoint.pull import WantedRepository, announce, fetch, planned_downloads
from sparkdeploy.deploy.request import Request, resolve
from sparkdeploy.errors import BuildError, CheckpointError
from sparkdeploy.plan.images import stages_for
from sparkdeploy.plan.models import conversion_of
from sparkdeploy.plan.observed import MissingModel
from sparkdeploy.recipe.image_name import is_tag
from sparkdeploy.recipe.image_pins import ImageLock, InspectedEngine
from sparkdeploy.recipe.words import shown
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.image.pins import ImageInspector
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.image_pins import ImagePin
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe
    from sparkdeploy.settings import Settings

OTHER_FORMATS = frozenset({"gguf", "mistral", "npcache", "pt", "sharded_state"})
"""Values of `load_format` for other files than vLLM reads without one."""


def with_known_image(
    plan: Plan, request: Request, settings: Settings, host: DockerHost, *, update: bool
) -> Resolved:
    """Pin a plan's image and inspect it; return the recipe for what the image holds.

    Returns the plan's own recipe where nothing is to be found out. Raises BuildError for an image
    that cannot be had, and RecipeError where the recipe does not fit what was found. `update` asks
    the registry again about a tag that is pinned already.
    """
    resolved = plan.resolved
    if resolved.engine.kind != "image":
        return resolved
    # It builds: the usual `up` is there sooner without all that.
    from sparkdeploy.image.pins import ImageInspector  # noqa: PLC0415

    inspector = ImageInspector(host, plan.observed.head.facts.architecture, settings)
    return pin_image(resolved, partial(resolve, request, settings), inspector, update=update)


def pin_image(
    resolved: Resolved,
    reload: Callable[[ImageLock], Resolved],
    inspector: ImageInspector,
    *,
    update: bool = False,
) -> Resolved:
    """Do what `with_known_image` does; `reload` loads the recipe for the images that it is given.

    A tag is pinned to its digest once the image was looked into, so that a tag is never pinned to
    an image that does not serve.
    """
    from sparkdeploy.image import pins  # noqa: PLC0415 - as above

    name, settings = resolved.image, inspector.settings
    if resolved.engine.kind != "image" or name is None:
        return resolved
    asks = is_tag(name) and update
    if isinstance(resolved.engine, InspectedEngine) and not asks:
        return resolved
    before = ImageLock(settings.state_dir).pin_of(name)
    pin = before
    if is_tag(name) and (asks or before is None):
        pin = inspector.ask_registry(name) if asks else inspector.pin(name)
    known = _inspected(reload, inspector, name, before, pin)
    if pin is not None and pin != before and inspector.platform is None:
        if before is not None:
            _print_changes(name, before, known, settings)
        pins.keep(settings, name, pin)
    return known


def _inspected(
    reload: Callable[[ImageLock], Resolved],
    inspector: ImageInspector,
    name: str,
    before: ImagePin | None,
    pin: ImagePin | None,
) -> Resolved:
    """Return the recipe for what an image holds; raises BuildError for one that cannot serve."""
    images = ImageLock(inspector.settings.state_dir, {name: pin} if pin is not None else {})
    known = reload(images)
    if isinstance(known.engine, InspectedEngine):
        return known
    stages = stages_for(known, base_source="registry", architecture=inspector.architecture)
    # A hint to ask the registry again is of no use for what it has just answered.
    first = stages[0] if pin is before else replace(stages[0], pinned_tag="")
    contents = inspector.inspect(known.engine, first)
    return reload(replace(images, found={known.engine.image or "": contents}))


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
    """A recipe's model, drafter and adapters, as far as they are of a hub."""
    return list(
        _repositories(resolve(Request(name, tuple(assignments)), settings).recipe, settings)
    )


def bring_models(plan: Plan, settings: Settings, consent: Callable[[str], bool]) -> bool:
    """Fetch the models a plan lacks, after asking; say whether the plan must be made anew.

    A model that is here already is pinned to the commit it has. Raises CheckpointError when
    nobody agrees, and as `pull_repositories` does.
    """
    recipe, observed = plan.resolved.recipe, plan.observed
    lock = HubLock(settings.state_dir)
    wanted = list(_repositories(recipe, settings))
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
            yield WantedRepository(weights.source, weights.revision)
