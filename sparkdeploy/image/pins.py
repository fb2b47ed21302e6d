"""Pins what an image of others is: which digest its tag means, and what it holds.

A tag is asked for once. What was found is kept in the state folder (recipe/image_pins.py) when
somebody has looked into it, and a plan reads it there.
"""

import errno
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sparkdeploy.atomic_files import write_private
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image import proof
from sparkdeploy.image.build import build_stage, find_built
from sparkdeploy.image.lock import Architecture
from sparkdeploy.image.network import registry_reference
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.facts import spelled
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.reports import BuildEvent
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.image_name import is_pinned
from sparkdeploy.recipe.image_pins import (
    ImageContents,
    ImageLock,
    ImagePin,
    PinFile,
    contents_adapter,
    pins_adapter,
)
from sparkdeploy.recipe.words import shown
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.step import Step

MAX_NAMED = 8


@dataclass(frozen=True, slots=True)
class ImageInspector:
    host: DockerHost
    architecture: Architecture
    settings: Settings
    platform: str | None = None
    """What Docker is asked to build for, where that is not its own: nothing is kept of it then,
    for a list has one digest for all platforms."""

    def pin(self, tag: str) -> ImagePin:
        """Ask what a tag is today; an image of that tag that is here stands in."""
        try:
            return self.ask_registry(tag)
        except BuildError as error:
            image = self._local_image(tag)
            if image is None:
                raise
            console.warn(f"{error.detail or error}; the image of that tag that is here is taken")
            return _new_pin(tag, image)

    def ask_registry(self, tag: str) -> ImagePin:
        """As `pin`, without an image that is here to stand in."""
        with console.step(f"asking the registry for {tag}"):
            image = self._published_image(tag)
        return _new_pin(tag, image)

    def take_loaded(self, name: str, image_id: str) -> ImagePin:
        """Return the pin to an image of this machine; `docker load` brings images without digests.

        Raises BuildError where no image has that id.
        """
        is_id = is_pinned(image_id) and "@" not in image_id
        image = self.host.find_image(image_id) if is_id else None
        if image is None:
            raise BuildError(
                f"no image of this machine has the id {shown(image_id)}",
                hint="`docker load -i FILE` brings one; `docker images --no-trunc` has the ids",
            )
        return _new_pin(name, image.image_id)

    def inspect(self, engine: Engine, stage: Stage) -> ImageContents:
        """Pull an image, make its engine stage, and note what it holds for this machine."""
        image = engine.image or ""
        stage = replace(stage, platform=self.platform)
        pull_below(self.host, stage, self.settings)
        with console.step(f"image {stage.name} of {image[:64]}") as step:
            built = build_stage(self.host, stage, self.settings, step)
            step.say("asking its vLLM what it takes")
            contents = proof.contents_of(self.host, built)
        if self.platform is None:
            path = ImageLock(self.settings.state_dir).contents_path(image)
            _write(path, contents_adapter().dump_json(contents), is_durable=False)
        console.info(f"  {contents.describe()}")
        return contents

    def _published_image(self, tag: str) -> str:
        reference = registry_reference(tag, self.settings.hosts.container_registry)
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

    def _local_image(self, tag: str) -> str | None:
        reference = registry_reference(tag, self.settings.hosts.container_registry)
        image = self.host.find_image(tag) or self.host.find_image(reference)
        if image is None:
            return None
        names = {_without_tag(tag), _without_tag(reference)}
        known = (name for name in image.digests if name.partition("@")[0] in names)
        return next(known, image.image_id)


def _new_pin(tag: str, image: str) -> ImagePin:
    console.info(f"  {tag} is {image}")
    return ImagePin(image, datetime.now(UTC).isoformat(timespec="seconds"))


def _without_tag(reference: str) -> str:
    head, slash, last = reference.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"


def keep(settings: Settings, tag: str, pin: ImagePin) -> None:
    """Note what a tag means from now on; NodeError where that cannot be written."""
    lock = ImageLock(settings.state_dir)
    file = PinFile(1, {**lock.all(), tag: pin})
    # What a tag is cannot be found out again: by tomorrow it may be another image.
    _write(lock.path, pins_adapter().dump_json(file, indent=1), is_durable=True)


def _write(path: Path, content: bytes, *, is_durable: bool) -> None:
    try:
        write_private(path, content.decode(), is_durable=is_durable)
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
    for name in ("vllm", "torch", "cuda", "kernels"):
        old, new = (getattr(it, name) or "none" for it in (before, after))
        if list(old) != list(new):
            words = (it if isinstance(it, str) else " ".join(it) for it in (old, new))
            yield f"{name} {' -> '.join(words)}"
    if before.release is not None and after.release is not None:
        old_flags, new_flags = set(before.release.flags), set(after.release.flags)
        for what, flags in (
            ("new flags", sorted(new_flags - old_flags)),
            ("flags that are gone", sorted(old_flags - new_flags)),
        ):
            rest = f" and {len(flags) - MAX_NAMED} more" if flags[MAX_NAMED:] else ""
            if flags:
                yield f"{what}: {', '.join(flags[:MAX_NAMED])}{rest}"


def pull_below(host: DockerHost, stage: Stage, settings: Settings) -> None:
    """Pull the image that a stage stands on, unless it is here or for another platform."""
    image = stage.registry_image
    if image is None or not stage.is_of_others or stage.platform is not None:
        return
    reference = registry_reference(image, settings.hosts.container_registry)
    if find_built(host, stage) is not None or host.find_image(reference) is not None:
        return
    try:
        with console.step(f"pull {image}") as step:
            failure, hint = _followed(host.pull(reference), step), None
    except NodeError as error:
        failure, hint = error.detail or error.message, error.hint
    if failure is not None:
        hint = hint or (
            "does the registry answer, and does it still have that digest? A private one needs "
            f"`docker login {reference.partition('/')[0]}`"
            + (f"; {stage.update_hint}" if stage.update_hint else "")
        )
        raise BuildError(f"{image} could not be pulled", hint=hint, detail=failure)


def _followed(events: Iterable[BuildEvent], step: Step) -> str | None:
    """Show layers and bytes while they come; return why it failed, or None."""
    layers: dict[str, tuple[int, int]] = {}
    finished: set[str] = set()
    for event in events:
        if event.error is not None:
            return event.error
        if not event.layer:
            continue
        if event.text in ("Pull complete", "Already exists"):
            finished.add(event.layer)
        if event.text == "Downloading" and event.total_bytes:
            layers[event.layer] = (event.done_bytes or 0, event.total_bytes)
        elif event.layer in layers:
            layers[event.layer] = (layers[event.layer][1], layers[event.layer][1])
        note = f"{len(finished)} of {len(layers.keys() | finished)} layers"
        if layers:
            done, total = (sum(column) for column in zip(*layers.values(), strict=True))
            step.progress(done, total, note)
        else:
            step.say(note)
    return None
