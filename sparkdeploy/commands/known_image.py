"""An image of others before it is served: what its tag is, and what it holds."""

from __future__ import annotations

import contextlib
from enum import Enum
from typing import TYPE_CHECKING

from sparkdeploy.commands.request import resolve
from sparkdeploy.console import console
from sparkdeploy.errors import BuildError, SparkdeployError
from sparkdeploy.plan.images import stages_for
from sparkdeploy.recipe.harmless import shown
from sparkdeploy.recipe.release import is_tag
from sparkdeploy.recipe.settled import ImageLock, SettledEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkdeploy.commands.request import Request
    from sparkdeploy.image.settle import Settling
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.settled import SettledImage
    from sparkdeploy.settings import Settings


class ImagePolicy(Enum):
    """What happens to a tag that was settled before."""

    KEEP = "it stays what it was"
    UPDATE = "the registry is asked again"


def with_known_image(
    plan: Plan, request: Request, settings: Settings, host: DockerHost, policy: ImagePolicy
) -> Resolved:
    """Settle a plan's image and look into it; return the recipe for what it holds.

    The plan's own where there is nothing to find out. Raises BuildError for an image that cannot
    be had, and RecipeError where the recipe does not fit what was found.
    """
    resolved = plan.resolved
    if resolved.engine.kind != "image":
        return resolved
    # It builds: the usual `up` is there sooner without all that.
    from sparkdeploy.image.settle import Settling  # noqa: PLC0415

    settling = Settling(host, plan.observed.head.facts.architecture, settings)
    return settle(resolved, lambda: resolve(request, settings), settling, policy)


def settle(
    resolved: Resolved, again: Callable[[], Resolved], settling: Settling, policy: ImagePolicy
) -> Resolved:
    """As `with_known_image`; `again` reads the recipe anew, with what is known by then."""
    name, settings = resolved.image, settling.settings
    if resolved.engine.kind != "image" or name is None:
        return resolved
    asks = is_tag(name) and policy is ImagePolicy.UPDATE
    if isinstance(resolved.engine, SettledEngine) and not asks:
        return resolved
    before = ImageLock(settings.state_dir).settled(name)
    if asks:
        settling.ask(name)
    elif is_tag(name) and before is None:
        settling.settle(name)
    known = again()
    if not isinstance(known.engine, SettledEngine):
        stages = stages_for(known, base_source="registry", architecture=settling.architecture)
        settling.look_into(known.engine, stages[0])
        known = again()
    if asks and before is not None:
        _tell_changes(name, before, known, settings)
    return known


def refuse_missing_mods(resolved: Resolved) -> None:
    missing = [mod.name for mod in resolved.mods if mod.is_missing]
    if missing:
        raise BuildError(
            f"mods are not here: {', '.join(map(shown, missing))}",
            hint="`sparkdeploy plan` says where they were looked for; --set mods=[] does without",
        )


def _tell_changes(name: str, before: SettledImage, known: Resolved, settings: Settings) -> None:
    from sparkdeploy.image.settle import differences  # noqa: PLC0415

    if known.engine.image == before.image:
        console.info(f"{name} is what it was: {before.image}")
        return
    console.info(f"{name} was {before.image} since {before.settled_at}; now it is")
    console.info(f"  {known.engine.image}")
    if isinstance(known.engine, SettledEngine):
        held = ImageLock(settings.state_dir).contents(before.image)
        for line in differences(held, known.engine.contents):
            console.info(f"  {line}")


@contextlib.contextmanager
def kept_on_failure(resolved: Resolved, settings: Settings) -> Iterator[None]:
    """What a tag meant when it last served, it means again after an `up` that fails."""
    name, lock = resolved.image, ImageLock(settings.state_dir)
    before = lock.settled(name) if name is not None else None
    try:
        yield
    except SparkdeployError:
        if name is not None and before is not None and lock.settled(name) != before:
            from sparkdeploy.image.settle import keep  # noqa: PLC0415

            keep(settings, name, before)
            console.warn(f"{name} stays what it was: {before.image}")
        raise
