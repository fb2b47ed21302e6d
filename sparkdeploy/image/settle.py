"""Settles what an image of others is: which digest its tag means, and what it holds.

A tag is asked for once. What was found is kept in the state folder (recipe/settled.py) when
somebody has looked into it, and a plan reads it there.
"""

from __future__ import annotations

import errno
import json
import shlex
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image import proof
from sparkdeploy.image.build import build_stage
from sparkdeploy.image.network import registry_reference
from sparkdeploy.image.pull import pull_below
from sparkdeploy.node.facts import spelled
from sparkdeploy.node.private_folder import write_private
from sparkdeploy.recipe.settled import ImageLock, SettledImage, contents_as_json, lock_as_dict
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkdeploy.image.lock import Architecture
    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.settled import ImageContents
    from sparkdeploy.settings import Settings

MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class Settling:
    """One machine's images of others: what its Docker Engine and the registry say of them."""

    host: DockerHost
    architecture: Architecture
    settings: Settings
    platform: str | None = None
    """What Docker is asked to build for, where that is not its own: nothing is kept of it then,
    for a list has one digest for all platforms."""

    def settle(self, tag: str) -> SettledImage:
        """Ask what a tag is today; an image of that tag that is here stands in.

        Raises BuildError where neither the registry nor this machine knows it, and where it is for
        other processors.
        """
        try:
            return self.ask(tag)
        except BuildError as error:
            found = self._meaning_here(tag)
            if found is None:
                raise
            console.warn(f"{error.detail or error}; the image of that tag that is here is taken")
            return _told(tag, found)

    def ask(self, tag: str) -> SettledImage:
        """As `settle`, where nothing but the registry's word will do."""
        with console.step(f"asking the registry for {tag}"):
            image = self._meaning(tag)
        return _told(tag, image)

    def look_into(self, engine: Engine, stage: Stage) -> ImageContents:
        """Pull an image, make its engine stage, and note what it holds for this machine.

        Raises BuildError for an image that cannot be had, or that does not fit a Spark.
        """
        image = engine.image or ""
        stage = replace(stage, platform=self.platform)
        pull_below(self.host, stage, self.settings)
        with console.step(f"image {stage.name} of {image[:64]}") as step:
            built = build_stage(self.host, stage, self.settings, step)
            step.say("asking its vLLM what it takes")
            contents = proof.contents_of(self.host, built)
        if self.platform is None:
            path = ImageLock(self.settings.state_dir).contents_path(image)
            _write(path, contents_as_json(contents).decode(), is_durable=False)
        console.info(f"  {contents.describe()}")
        return contents

    @property
    def _registry(self) -> str:
        return self.settings.hosts.container_registry

    def _meaning(self, tag: str) -> str:
        reference = registry_reference(tag, self._registry)
        try:
            found = self.host.registry_image(reference)
        except NodeError as error:
            raise BuildError(
                f"the registry did not tell what the image {tag} is",
                hint=error.hint
                or "does it answer, and is the name right? A private one needs `docker login "
                f"{reference.partition('/')[0]}`; behind a mirror, set `container_registry` in "
                "config.yaml to your mirror's host name",
                detail=error.message,
            ) from error
        offered = {spelled(name) for name in found.architectures}
        if offered and self.architecture not in offered:
            raise BuildError(
                f"{tag} is for {', '.join(found.architectures)}, and this machine is"
                f" {self.architecture}",
                hint="look for a tag of that image that is built for this kind of machine",
            )
        return f"{_without_tag(tag)}@{found.digest}"

    def _meaning_here(self, tag: str) -> str | None:
        """Return what the tag is on this machine, where it was pulled or made by hand."""
        reference = registry_reference(tag, self._registry)
        image = self.host.find_image(tag) or self.host.find_image(reference)
        if image is None:
            return None
        names = {_without_tag(tag), _without_tag(reference)}
        known = [name for name in image.digests if name.partition("@")[0] in names]
        return known[0] if known else image.image_id


def _told(tag: str, image: str) -> SettledImage:
    console.info(f"  {tag} is {image}")
    return SettledImage(image, datetime.now(UTC).isoformat(timespec="seconds"))


def keep(settings: Settings, tag: str, settled: SettledImage) -> None:
    """Note what a tag means from now on; NodeError where that cannot be written."""
    lock = ImageLock(settings.state_dir)
    images = lock.all() | {tag: settled}
    # What a tag is cannot be found out again: by tomorrow it may be another image.
    _write(lock.path, json.dumps(lock_as_dict(images), indent=1), is_durable=True)


def _write(path: Path, text: str, *, is_durable: bool) -> None:
    try:
        write_private(path, text, is_durable=is_durable)
    except OSError as error:
        listing = f"`ls -ld {shlex.quote(str(path.parent))}`"
        hint = f"{listing} shows whom it belongs to: only that user may write there"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = f"free space below {path.parent}"
        raise NodeError(f"{path} cannot be written: {error.strerror}", hint=hint) from error


def differences(before: ImageContents | None, after: ImageContents) -> Iterator[str]:
    """Yield what another image under the same tag brings: versions, kernels, flags."""
    if before is None:
        yield after.describe()
        return
    for name in ("vllm", "torch", "cuda"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield f"{name} {old or 'none'} -> {new or 'none'}"
    if tuple(before.kernels) != tuple(after.kernels):
        yield f"kernels {' '.join(before.kernels) or 'none'} -> {' '.join(after.kernels) or 'none'}"
    if before.release is not None and after.release is not None:
        old_flags, new_flags = set(before.release.flags), set(after.release.flags)
        yield from _named("new flags", new_flags - old_flags)
        yield from _named("flags that are gone", old_flags - new_flags)


def _named(what: str, flags: set[str]) -> Iterator[str]:
    if flags:
        named = sorted(flags)
        rest = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
        yield f"{what}: {', '.join(named[:MAX_NAMED])}{rest}"


def _without_tag(reference: str) -> str:
    head, slash, last = reference.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"
