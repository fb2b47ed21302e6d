"""`image`: our images, listed, shown and removed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkdeploy import labels
from sparkdeploy.deploy.lock import refuse_used
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.image.emulation import platform_of
from sparkdeploy.image.stages import UPPERMOST_FIRST
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import Settings

SHORTEST_ABBREVIATION = 4


@dataclass(frozen=True, slots=True)
class ImageRow:
    tag: str
    stage: str
    engine: str
    platform: str
    size_bytes: int
    deployments: tuple[str, ...]


def list_images(settings: Settings) -> tuple[ImageRow, ...]:
    with connect(settings) as host:
        images = [host.measured(image) for image in host.own_images() if image.tags]
        users = [(item.image_id, item.deployment) for item in host.own_containers()]
    rows = [
        ImageRow(
            tag=image.tags[0],
            stage=image.stage,
            engine=image.engine,
            platform=platform_of(image.built_for),
            size_bytes=image.size_bytes,
            deployments=tuple(name for image_id, name in users if image_id == image.image_id),
        )
        for image in images
    ]
    return tuple(sorted(rows, key=lambda row: (row.engine, UPPERMOST_FIRST.get(row.stage, 4))))


def show_image(reference: str, settings: Settings) -> dict[str, Any]:
    with connect(settings) as host:
        chain = host.image_chain(host.measured(find_own(host.own_images(), reference)))
    first, inputs = chain[0], f"{labels.PREFIX}input."
    return {
        "tag": first.tags[0],
        "id": first.image_id,
        "size_bytes": first.size_bytes,
        "engine": first.labels.get(labels.ENGINE),
        "stage": first.labels.get(labels.STAGE),
        "platform": platform_of(first.built_for),
        "fingerprint": first.labels.get(labels.FINGERPRINT),
        "version": first.labels.get(labels.VERSION),
        "stands_on": [image.tags[0] for image in chain[1:]],
        # An image has the labels of the one below it too.
        "proof": {
            image.stage: image.proof
            for image in chain
            if image.stage not in ("base", "mod", "guard") and labels.PROOF in image.labels
        },
        "mods": {
            image.tags[0]: {"name": image.labels.get(labels.MOD), **image.proof}
            for image in reversed(chain)
            if image.stage == "mod"
        },
        "inputs": {
            name.removeprefix(inputs): value
            for name, value in sorted(first.labels.items())
            if name.startswith(inputs)
        },
    }


def remove_images(references: Sequence[str], settings: Settings) -> tuple[str, ...]:
    with connect(settings) as host:
        own = [image for image in host.own_images() if image.tags]
        chosen = {find_own(own, reference).image_id for reference in references}
        going = [image for image in own if image.image_id in chosen]
        _refuse_needed(going, [image for image in own if image.image_id not in chosen], host)
        refuse_used((tag for image in going for tag in image.tags), settings)
        going.sort(key=lambda image: UPPERMOST_FIRST.get(image.stage, 4))
        for image in going:
            for tag in image.tags:
                host.remove_image(tag)
        return tuple(image.tags[0] for image in going)


def _refuse_needed(going: list[ImageFact], staying: list[ImageFact], host: DockerHost) -> None:
    tags = {tag for image in going for tag in image.tags}
    for container in host.own_containers():
        if any(container.image_id == image.image_id for image in going):
            raise NodeError(
                f"an image to be removed has a container of deployment {container.deployment}",
                hint=f"sparkdeploy down {container.deployment}",
            )
    for image in staying:
        if image.below in tags:
            raise NodeError(
                f"{image.tags[0]} is built on {image.below}",
                hint=f"remove both: sparkdeploy image rm {image.tags[0]} {image.below}",
            )


def find_own(images: Iterable[ImageFact], reference: str) -> ImageFact:
    """Return the image of a tag, the start of an id or fingerprint, or an engine's newest."""
    tagged = [image for image in images if image.tags]
    start = reference.removeprefix("sha256:")
    is_start = len(start) >= SHORTEST_ABBREVIATION
    for image in tagged:
        known = (image.image_id.removeprefix("sha256:"), image.fingerprint)
        if reference in image.tags or (is_start and any(it.startswith(start) for it in known)):
            return image
    newest = [it for it in tagged if it.engine == reference and it.stage in ("plugin", "guard")]
    if not reference or not newest:
        unknown = f"no image of sparkdeploy is known as {reference}"
        raise UsageError(unknown, hint="sparkdeploy image ls")
    return newest[0]
