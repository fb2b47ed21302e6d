"""The images of this machine that are ours: listed, shown, removed, carried elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy import labels
from sparkdeploy.commands.drafting import connect
from sparkdeploy.console import console
from sparkdeploy.errors import BuildError, NodeError, UsageError
from sparkdeploy.image.archive import ArchivedImage, read_archive

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from sparkdeploy.node.container import ImageFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.settings import Settings

SHORTEST_ABBREVIATION = 4
UPPERMOST_FIRST = {"plugin": 0, "engine": 1, "base": 2}


@dataclass(frozen=True, slots=True)
class ShelfImage:
    """One image of ours."""

    tag: str
    stage: str
    engine: str
    size_bytes: int
    deployments: tuple[str, ...]
    """Who runs from it."""


def list_images(settings: Settings) -> tuple[ShelfImage, ...]:
    """Return our images, by engine and stage, the newest first."""
    with connect(settings) as host:
        images = [image for image in host.own_images() if image.tags]
        users = [(item.image_id, item.deployment) for item in host.own_containers()]
    rows = [
        ShelfImage(
            tag=image.tags[0],
            stage=image.labels.get(labels.STAGE, ""),
            engine=image.labels.get(labels.ENGINE, ""),
            size_bytes=image.size_bytes,
            deployments=tuple(name for image_id, name in users if image_id == image.image_id),
        )
        for image in images
    ]
    return tuple(sorted(rows, key=lambda row: (row.engine, UPPERMOST_FIRST.get(row.stage, 3))))


def show_image(reference: str, settings: Settings) -> dict[str, Any]:
    """Return everything an image of ours says of itself, and what it stands on."""
    with connect(settings) as host:
        chain = image_chain(host, find_own(host.own_images(), reference))
    first = chain[0]
    return {
        "tag": first.tags[0],
        "id": first.image_id,
        "size_bytes": first.size_bytes,
        "engine": first.labels.get(labels.ENGINE),
        "stage": first.labels.get(labels.STAGE),
        "fingerprint": first.labels.get(labels.FINGERPRINT),
        "version": first.labels.get(labels.VERSION),
        "stands_on": [image.tags[0] for image in chain[1:]],
        "proof": {
            image.labels[labels.STAGE]: json.loads(image.labels[labels.PROOF])
            for image in chain
            if labels.PROOF in image.labels
        },
        "inputs": {
            name.removeprefix(f"{labels.PREFIX}input."): value
            for name, value in sorted(first.labels.items())
            if name.startswith(f"{labels.PREFIX}input.")
        },
    }


def remove_images(references: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Remove images of ours, and nothing else; return their tags.

    Raises NodeError, before anything is removed, when a deployment or another image needs one.
    """
    with connect(settings) as host:
        own = [image for image in host.own_images() if image.tags]
        chosen = {find_own(own, reference).image_id for reference in references}
        going = [image for image in own if image.image_id in chosen]
        _refuse_needed(going, [image for image in own if image.image_id not in chosen], host)
        going.sort(key=lambda image: UPPERMOST_FIRST.get(image.labels.get(labels.STAGE, ""), 3))
        for image in going:
            for tag in image.tags:
                host.remove_image(tag)
        return tuple(image.tags[0] for image in going)


def export_images(reference: str, file: Path, settings: Settings) -> tuple[ImageFact, ...]:
    """Write an image and those it stands on into a tar; it appears only when it is complete.

    Raises NodeError for an image that is not here, and for a tar that cannot be written.
    """
    part = file.with_name(f".{file.name}.part")
    with connect(settings) as host:
        chain = image_chain(host, find_own(host.own_images(), reference))
        tags = [image.tags[0] for image in chain]
        try:
            with console.step(f"export {tags[0]}") as step, part.open("wb") as stream:
                for chunk in host.save_images(tags):
                    stream.write(chunk)
                    step.progress(stream.tell(), max(chain[0].size_bytes, stream.tell()))
            part.replace(file)
        except OSError as error:
            raise NodeError(
                f"{file} cannot be written: {error.strerror or error}",
                hint=f"it needs about {chain[0].size_bytes} bytes",
            ) from error
        finally:
            part.unlink(missing_ok=True)
    return chain


def import_images(
    file: Path, expected_digest: str | None, settings: Settings
) -> tuple[ArchivedImage, ...]:
    """Verify an archive, load it and look whether what was promised is there.

    `expected_digest` is what `export` printed. Raises BuildError before anything is loaded when
    the archive is damaged, foreign or another one.
    """
    with console.step(f"verify {file.name}"):
        images = read_archive(file)
    wanted = (expected_digest or "").removeprefix("sha256:")
    if wanted and all(image.digest != wanted for image in images):
        raise BuildError(
            f"{file} holds no image with the digest sha256:{wanted}",
            detail="\n".join(f"sha256:{image.digest} {' '.join(image.tags)}" for image in images),
        )
    with connect(settings) as host:
        with console.step(f"load {file.name}"), file.open("rb") as stream:
            host.load_images(stream)
        for image in images:
            _require_loaded(host, image)
    return images


def find_own(images: Iterable[ImageFact], reference: str) -> ImageFact:
    """Return the image a user means: tag, start of its id or fingerprint, or an engine's newest.

    Raises UsageError when there is none; Docker lists images newest first.
    """
    tagged = [image for image in images if image.tags]
    for matches in (_is_named, _is_engines_last):
        found = [image for image in tagged if matches(image, reference)]
        if found:
            return found[0]
    raise UsageError(
        f"no image of sparkdeploy is known as {reference}", hint="sparkdeploy image ls"
    )


def _is_named(image: ImageFact, reference: str) -> bool:
    if reference in image.tags:
        return True
    if len(reference) < SHORTEST_ABBREVIATION:
        return False
    start = reference.removeprefix("sha256:")
    identities = (image.image_id.removeprefix("sha256:"), image.labels.get(labels.FINGERPRINT, ""))
    return any(identity.startswith(start) for identity in identities)


def _is_engines_last(image: ImageFact, reference: str) -> bool:
    found = image.labels.get(labels.ENGINE), image.labels.get(labels.STAGE)
    return found == (reference, "plugin")


def image_chain(host: DockerHost, image: ImageFact) -> tuple[ImageFact, ...]:
    """Return an image and those it stands on, downwards, as far as they are here."""
    chain = [image]
    while below := chain[-1].labels.get(labels.BELOW):
        found = host.find_image(below)
        # A label may name the very image that bears it.
        if found is None or found.image_id in {image.image_id for image in chain}:
            break
        chain.append(found)
    return tuple(chain)


def _refuse_needed(going: list[ImageFact], staying: list[ImageFact], host: DockerHost) -> None:
    tags = {tag for image in going for tag in image.tags}
    ids = {image.image_id for image in going}
    for container in host.own_containers():
        if container.image_id in ids:
            raise NodeError(
                f"deployment {container.deployment} was made from an image that would go",
                hint=f"sparkdeploy down {container.deployment}",
            )
    for image in staying:
        if image.labels.get(labels.BELOW) in tags:
            raise NodeError(
                f"{image.tags[0]} stands on {image.labels[labels.BELOW]}",
                hint=f"remove both: sparkdeploy image rm {image.tags[0]}"
                f" {image.labels[labels.BELOW]}",
            )


def _require_loaded(host: DockerHost, image: ArchivedImage) -> None:
    for tag in image.tags:
        found = host.find_image(tag)
        if found is None or dict(found.labels) != dict(image.labels):
            raise NodeError(f"{tag} is not what the archive holds after loading it")
