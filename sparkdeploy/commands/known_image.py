"""An image of others before it is served: what its tag is, and what it holds."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from sparkdeploy.commands.request import resolve
from sparkdeploy.console import console
from sparkdeploy.deploy.new_meaning import NewMeaning
from sparkdeploy.errors import BuildError, SparkdeployError
from sparkdeploy.image.pins import keep
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


@dataclass(frozen=True, slots=True)
class Known:
    """A recipe for what its image holds."""

    resolved: Resolved
    new: NewMeaning | None = None
    """What the registry says of the tag now, where that is not what served before."""


def with_known_image(
    plan: Plan, request: Request, settings: Settings, host: DockerHost, policy: ImagePolicy
) -> Known:
    """Settle a plan's image and look into it; return the recipe for what it holds.

    The plan's own where there is nothing to find out. Raises BuildError for an image that cannot
    be had, and RecipeError where the recipe does not fit what was found.
    """
    resolved = plan.resolved
    if resolved.engine.kind != "image":
        return Known(resolved)
    # It builds: the usual `up` is there sooner without all that.
    from sparkdeploy.image.settle import Settling  # noqa: PLC0415

    settling = Settling(host, plan.observed.head.facts.architecture, settings)
    return settle(resolved, partial(resolve, request, settings), settling, policy)


def settle(
    resolved: Resolved,
    again: Callable[[ImageLock], Resolved],
    settling: Settling,
    policy: ImagePolicy,
) -> Known:
    """As `with_known_image`; `again` reads the recipe anew, with what is known by then.

    What a tag means for the first time is kept as soon as somebody has looked into it.
    """
    name, settings = resolved.image, settling.settings
    if resolved.engine.kind != "image" or name is None:
        return Known(resolved)
    asks = is_tag(name) and policy is ImagePolicy.UPDATE
    if isinstance(resolved.engine, SettledEngine) and not asks:
        return Known(resolved)
    before = ImageLock(settings.state_dir).settled(name)
    found = before
    if is_tag(name) and (asks or before is None):
        found = settling.ask(name) if asks else settling.settle(name)
    known = _looked_into(again, settling, name, before, found)
    if before is None or found is None or not asks:
        return Known(known)
    _tell_changes(name, before, known, settings)
    return Known(known, NewMeaning(name, found) if found.image != before.image else None)


def _looked_into(
    again: Callable[[ImageLock], Resolved],
    settling: Settling,
    name: str,
    before: SettledImage | None,
    found: SettledImage | None,
) -> Resolved:
    """Return the recipe for what an image holds; nothing is kept of one that does not serve."""
    images = ImageLock(settling.settings.state_dir, {name: found} if found is not None else {})
    known = again(images)
    is_known = isinstance(known.engine, SettledEngine)
    if not is_known:
        stages = stages_for(known, base_source="registry", architecture=settling.architecture)
        # To ask anew what was asked a moment ago is no advice.
        first = stages[0] if found is before else replace(stages[0], settled_tag="")
        contents = settling.look_into(known.engine, first)
        images = replace(images, found={known.engine.image or "": contents})
    if found is not None and before is None and settling.platform is None:
        keep(settling.settings, name, found)
    return known if is_known else again(images)


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


@dataclass(slots=True)
class Trial:
    """The new meaning of a tag, as long as nothing of it has answered."""

    settings: Settings
    asked: str | None = None
    """The tag that the registry is asked anew about."""
    new: NewMeaning | None = None

    def succeed(self) -> None:
        if self.new is not None:
            self.new.keep(self.settings)

    def tell_pending(self) -> None:
        if self.new is not None:
            console.info(
                f"{self.new.tag} stays what it was until this start has answered: the next `up` or"
                " `rollback` of this deployment notes it"
            )

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Say after a failure that the tag is what it was when it last served."""
        try:
            yield
        except SparkdeployError:
            self._tell()
            raise

    def _tell(self) -> None:
        tag = self.new.tag if self.new is not None else self.asked
        before = ImageLock(self.settings.state_dir).settled(tag) if tag is not None else None
        if before is not None and (self.new is None or before != self.new.settled):
            console.warn(f"{tag} stays what it was: {before.image}")
