"""The same image on every node: stages are built here, the engine travels, the plugin is built.

What is there by fingerprint stays where it is.
"""

from __future__ import annotations

import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.console import console, format_bytes
from sparkdeploy.errors import NodeError
from sparkdeploy.image.build import build_stage, find_built
from sparkdeploy.image.compilation import refuse_start
from sparkdeploy.image.context import write_tar
from sparkdeploy.node.facts import free_bytes_on
from sparkdeploy.node.node import named
from sparkdeploy.plan.problems import LOAD_FACTOR
from sparkdeploy.plan.steps import Action

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.console import Step
    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.container import ImageFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.settings import Settings

GZIP = 31
FASTEST = 1


def build_images(plan: Plan, host: DockerHost, settings: Settings) -> None:
    """Build what is missing; raise BuildError with the end of the log when a stage fails."""
    missing = [image.stage for image in plan.images if image.action is Action.BUILD]
    for stage in missing:
        if stage.source is not None:
            # Before the base is fetched: what cannot be compiled is not worth ten gigabytes.
            refuse_start(stage, host, settings)
    for stage in missing:
        with console.step(f"image {stage.name}") as step:
            fact = build_stage(host, stage, settings, step)
        console.info(f"  {stage.tag}, {format_bytes(fact.size_bytes)}")


@dataclass(frozen=True, slots=True)
class ImageTravel:
    """What went to one node for its images."""

    node: str
    engine_bytes: int
    """Compressed, as they were sent; 0 when the engine stage was there."""
    context_bytes: int
    """The plugin stage's context; 0 when the image was there."""


def same_images(plan: Plan, nodes: Nodes, settings: Settings) -> tuple[ImageTravel, ...]:
    """Bring every other node the images of the plan; what is there by fingerprint stays.

    Raises NodeError or BuildError naming the node.
    """
    *_, engine, plugin = (step.stage for step in plan.images)
    workers = (nodes.node(part.node) for part in plan.parts[1:])
    return tuple(_bring(engine, plugin, nodes.here, worker, settings) for worker in workers)


def _bring(
    engine: Stage, plugin: Stage, head: Node, worker: Node, settings: Settings
) -> ImageTravel:
    with named(worker):
        if find_built(worker.docker, plugin) is not None:
            return ImageTravel(worker.name, 0, 0)
        stranger = worker.docker.find_image(plugin.tag)
        if stranger is not None:
            console.warn(f"{worker.name}: {plugin.tag} is another image there; making it anew")
        has_engine = find_built(worker.docker, engine) is not None
    sent = 0 if has_engine else _send(engine, head, worker)
    context_bytes = _context_bytes(plugin)
    title = f"image plugin on {worker.name} ({format_bytes(context_bytes)} of context)"
    with named(worker), console.step(title) as step:
        build_stage(worker.docker, plugin, settings, step)
    return ImageTravel(worker.name, sent, context_bytes)


def _send(engine: Stage, head: Node, worker: Node) -> int:
    image = head.docker.find_image(engine.tag)
    if image is None:
        raise NodeError(f"{head.name}: {engine.tag} is not there")
    with named(worker):
        _require_room(worker, image)
    stream = _Compressed(head.docker.save_images([engine.tag]))
    try:
        with named(worker), console.step(f"image engine to {worker.name}") as step:
            worker.docker.load_images(stream.chunks(step, image.size_bytes))
    except NodeError as error:
        if stream.failure is not None:
            raise stream.failure from None
        raise _explained(error, worker, image, stream.read_bytes) from error
    with named(worker):
        is_there = find_built(worker.docker, engine) is not None
    if not is_there:
        raise NodeError(f"{worker.name}: {engine.tag} is not there after it was loaded")
    console.info(
        f"  {format_bytes(stream.read_bytes)} as {format_bytes(stream.sent_bytes)} compressed"
    )
    return stream.sent_bytes


class _Compressed:
    """An archive on its way, packed as it goes."""

    def __init__(self, archive: Iterator[bytes]) -> None:
        self._archive = archive
        self.read_bytes = 0
        self.sent_bytes = 0
        self.failure: NodeError | None = None
        """What kept the head from reading on; the node that loads it is not to blame."""

    def chunks(self, step: Step, total_bytes: int) -> Iterator[bytes]:
        packer = zlib.compressobj(FASTEST, zlib.DEFLATED, GZIP)
        for chunk in self._read():
            self.read_bytes += len(chunk)
            packed = packer.compress(chunk)
            self.sent_bytes += len(packed)
            if self.read_bytes * 100 > total_bytes:
                # The engine packs for a while before the archive flows: no rate can be told yet.
                step.progress(self.read_bytes, max(total_bytes, self.read_bytes))
            if packed:
                yield packed
        rest = packer.flush()
        self.sent_bytes += len(rest)
        yield rest

    def _read(self) -> Iterator[bytes]:
        try:
            yield from self._archive
        except NodeError as error:
            self.failure = error
            raise


def _require_room(worker: Node, image: ImageFact) -> None:
    free_bytes, root = _docker_room(worker)
    needed_bytes = LOAD_FACTOR * image.size_bytes
    if free_bytes is not None and free_bytes < needed_bytes:
        raise NodeError(
            f"{worker.name}: disk: the engine image takes {format_bytes(needed_bytes)} while it is "
            f"loaded, and {root} has {format_bytes(free_bytes)} free",
            hint=f"on {worker.name}: docker image prune, or move docker's data-root",
        )


def _docker_room(node: Node) -> tuple[int | None, str]:
    """Return the free bytes of the disk that a node's engine keeps its images on, and where."""
    root = node.docker.info().root_dir
    return free_bytes_on(node, Path(root)), root


def _explained(error: NodeError, worker: Node, image: ImageFact, read_bytes: int) -> NodeError:
    """Say `disk full` where that is why an engine hung up in the middle of an archive."""
    try:
        free_bytes, root = _docker_room(worker)
    except NodeError:
        return error
    left_bytes = max(image.size_bytes - read_bytes, 0) + image.size_bytes // 20
    if "no space left" in f"{error.message} {error.detail}".lower() or (
        free_bytes is not None and free_bytes < left_bytes
    ):
        return NodeError(
            f"{worker.name}: disk full while the engine image was loaded: {root} has "
            f"{format_bytes(free_bytes or 0)} free",
            hint=f"on {worker.name}: docker image prune, or move docker's data-root",
            detail=error.message,
        )
    return error


def _context_bytes(stage: Stage) -> int:
    with tempfile.TemporaryFile() as file:
        write_tar(list(stage.context), file)
        return file.tell()
