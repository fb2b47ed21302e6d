"""Pulls the image that an engine stage stands on: a step of its own, with its layers and bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image.build import find_built
from sparkdeploy.image.network import registry_reference
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.reports import BuildEvent
    from sparkdeploy.settings import Settings
    from sparkdeploy.terminal.step import Step


def pull_below(host: DockerHost, stage: Stage, settings: Settings) -> None:
    """Pull the image of others that a stage stands on, unless it or the stage is here.

    Raises BuildError where it cannot be had. An image for another platform is the build's to pull,
    which names that platform.
    """
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
        raise BuildError(
            f"{image} could not be pulled", hint=hint or _hint(stage, reference), detail=failure
        )


def _hint(stage: Stage, reference: str) -> str:
    asked = "does the registry answer, and does it still have that digest?"
    login = f"A private one needs `docker login {reference.partition('/')[0]}`"
    return f"{asked} {login}" + (f"; {stage.update_hint}" if stage.update_hint else "")


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
        known = layers.keys() | finished
        note = f"{len(finished)} of {len(known)} layers"
        if layers:
            done, total = (sum(column) for column in zip(*layers.values(), strict=True))
            step.progress(done, total, note)
        else:
            step.say(note)
    return None
