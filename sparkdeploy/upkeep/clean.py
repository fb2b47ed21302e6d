"""`clean`: find what sparkdeploy itself has left behind, and remove it."""

import itertools
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkdeploy.deploy.lock import deploy_lock, users_of
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image.lock import ARCHITECTURES, Architecture
from sparkdeploy.image.stages import BASE_SOURCES, UPPERMOST_FIRST, Stage, stages_of
from sparkdeploy.node import facts
from sparkdeploy.node.container import ImageFact, is_name
from sparkdeploy.node.host import DockerHost
from sparkdeploy.plan.folders import ENGINE_DIGITS, caches_of_engines, unused_caches
from sparkdeploy.recipe.load import library, load_engine
from sparkdeploy.settings import Settings, resources

KEPT_DAYS = 14
ENDED_CHECK = "it looked into an image for a command that was killed"


@dataclass(frozen=True, slots=True)
class Leftover:
    kind: Literal["deployment", "container", "image", "crash folder", "cache", "folder"]
    name: str
    """A deployment's name, a container's id, an image's tag, or a folder's path."""
    size_bytes: int
    """Of an image with all its layers: what it shares with others stays."""
    why: str


@dataclass(frozen=True, slots=True)
class WantedImages:
    tags: frozenset[str]
    engine_fingerprints: frozenset[str]
    opaque_engines: frozenset[str]
    """Nothing says which of their images are old, so they all stay."""


def clean(
    settings: Settings, host: DockerHost, *, agrees: Callable[[Sequence[Leftover]], bool]
) -> tuple[Leftover, ...]:
    """Remove our leftovers once `agrees` has seen them; images that a running `up` named stay."""
    agreed = find_leftovers(settings, host, now_s=time.time())
    if not agreed or not agrees(agreed):
        return ()
    with deploy_lock(settings, "clean"):
        # What a deployment has begun to use since the question stays.
        again = find_leftovers(settings, host, now_s=time.time())
        still = {(item.kind, item.name) for item in again}
        found = tuple(item for item in agreed if (item.kind, item.name) in still)
        for item in found:
            _remove(item, host)
    return found


def find_leftovers(settings: Settings, host: DockerHost, *, now_s: float) -> tuple[Leftover, ...]:
    wanted = wanted_by(settings, facts.architecture_of(host.info()))
    images = host.own_images()
    named = users_of((tag for image in images for tag in image.tags), settings)
    used = host.images_in_use() | {
        image.image_id for image in images if named.keys() & set(image.tags)
    }
    old = old_images(images, used, wanted)
    staying = [image for image in images if image not in old]
    sources = (host.mounted_from(container.container_id) for container in host.own_containers())
    mounted = frozenset(itertools.chain.from_iterable(sources))
    return (
        *(Leftover("container", it[:12], 0, ENDED_CHECK) for it in host.ended_checks()),
        *(_image(host.measured(image)) for image in old),
        *_old_crashes(settings.crashes_dir, now_s),
        *_old_caches(caches_of_engines(settings), staying, wanted, mounted),
    )


def _remove(item: Leftover, host: DockerHost) -> None:
    try:
        if item.kind == "container":
            host.remove(item.name)
        elif item.kind == "image":
            host.remove_image(item.name)
        else:
            shutil.rmtree(item.name)
    except OSError as error:
        message = f"{item.name} cannot be removed: {error.strerror}"
        raise NodeError(message, hint=f"sudo rm -r {shlex.quote(item.name)}") from error


def old_images(
    images: Iterable[ImageFact], used: set[str], wanted: WantedImages
) -> tuple[ImageFact, ...]:
    """Return stages' images that nothing needs; those that stand on others come first."""
    ours = [image for image in images if image.stage in UPPERMOST_FIRST]
    opaque = wanted.opaque_engines
    kept = [
        it
        for it in ours
        if it.image_id in used or wanted.tags & set(it.tags) or it.engine in opaque
    ]
    by_tag = {tag: image for image in ours for tag in image.tags}
    for image in kept:
        below = by_tag.get(image.below)
        if below is not None and below not in kept:
            kept.append(below)
    old = [image for image in ours if image not in kept and image.tags]
    return tuple(sorted(old, key=lambda image: UPPERMOST_FIRST[image.stage]))


def wanted_by(settings: Settings, architecture: Architecture) -> WantedImages:
    """Return what this version would build; an engine that cannot be built is opaque."""
    known = library(settings)
    stages: list[Stage] = []
    opaque: set[str] = set()
    for name in known.engine_files():
        engine = load_engine(known, name)
        if engine.kind == "image":
            opaque.add(name)
            continue
        # What was prepared here for machines of another kind is no leftover.
        for target, source in itertools.product(ARCHITECTURES, BASE_SOURCES):
            try:
                stages += stages_of(
                    engine, base_source=source, architecture=target, resources=resources()
                )
            except BuildError:
                if target == architecture:
                    opaque.add(name)
    return WantedImages(
        frozenset(stage.tag for stage in stages),
        frozenset(stage.fingerprint for stage in stages if stage.name == "engine"),
        frozenset(opaque),
    )


def _image(image: ImageFact) -> Leftover:
    engine = image.engine if is_name(image.engine) else "its engine"
    why = f"{engine} is now built from other inputs"
    return Leftover("image", image.tags[0], image.size_bytes, why)


def _old_crashes(folder: Path, now_s: float) -> Iterator[Leftover]:
    for crash in sorted(folder.iterdir()) if folder.is_dir() else ():
        days = (now_s - crash.stat().st_mtime) / 86400
        if crash.is_dir() and days > KEPT_DAYS:
            yield _old_folder("crash folder", crash, f"{days:.0f} days old")


def _old_caches(
    folder: Path, images: Iterable[ImageFact], wanted: WantedImages, mounted: frozenset[str]
) -> Iterator[Leftover]:
    """Yield caches of engine stages that are neither here nor wanted.

    Of an engine that is here, only caches that one deployment had for itself are left over.
    `mounted` are the host paths that our containers mount, those that wait for a rollback too.
    """
    here = {image.fingerprint for image in images}
    keys = {fingerprint[:ENGINE_DIGITS] for fingerprint in here | wanted.engine_fingerprints}
    is_opaque = any(image.engine in wanted.opaque_engines for image in images)
    for engine in sorted(filter(Path.is_dir, folder.iterdir())) if folder.is_dir() else ():
        if engine.name not in keys and not is_opaque:
            yield _old_folder("cache", engine, "its engine's image is gone")
            continue
        for cache in unused_caches(engine, mounted):
            yield _old_folder("cache", cache, "no deployment uses it")


def _old_folder(kind: Literal["crash folder", "cache"], folder: Path, why: str) -> Leftover:
    files = (item for item in folder.rglob("*") if item.is_file() or item.is_symlink())
    return Leftover(kind, str(folder), sum(item.lstat().st_size for item in files), why)
