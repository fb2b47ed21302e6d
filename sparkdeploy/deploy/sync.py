"""What goes from the head to the other nodes: the engine's image and the weights that differ.

What is there by fingerprint or by hash stays where it is. An engine goes with its mods; what tops
it, the plugin or the guard, is built on each node.
"""

from __future__ import annotations

import re
import shlex
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import shell
from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.image.build import build_stage, find_built
from sparkdeploy.node.facts import free_bytes_on
from sparkdeploy.node.node import at_once, named
from sparkdeploy.node.tree import Entry, Ledger, hashes, list_tree
from sparkdeploy.plan.paths import mapping_to, sync_trees
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.container import ImageFact
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.plan.paths import SyncTree
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.settings import Settings
    from sparkdeploy.terminal.step import Step

GZIP = 31
FASTEST = 1
SHOWN_FILES = 3
PARTIAL = ".sparkdeploy-partial"
_PROGRESS = re.compile(r"(?<![\d,])([\d,]{1,32})[ \t]{1,16}\d{1,3}%")
_SENT = re.compile(r"^Total bytes sent: ([\d,]+)", re.MULTILINE)


def send_images(plan: Plan, nodes: Nodes, settings: Settings) -> dict[Node, int]:
    """Bring every other node the images of the plan; NodeError or BuildError name the node.

    Returns the bytes that went to each, compressed: 0 where the engine stage was there.
    """
    *_, below, top = (step.stage for step in plan.images)
    workers = (nodes.node(planned.node) for planned in plan.nodes[1:])
    return {worker: _bring(below, top, nodes.here, worker, settings) for worker in workers}


def _bring(engine: Stage, top: Stage, head: Node, worker: Node, settings: Settings) -> int:
    with named(worker):
        if find_built(worker.docker, top) is not None:
            return 0
        if worker.docker.find_image(top.tag) is not None:
            console.warn(f"{worker.name}: {top.tag} is another image there; making it anew")
        has_engine = find_built(worker.docker, engine) is not None
    sent_bytes = 0 if has_engine else _send_image(engine, head, worker)
    with named(worker), console.step(f"image {top.name} on {worker.name}") as step:
        build_stage(worker.docker, top, settings, step)
    return sent_bytes


def _send_image(engine: Stage, head: Node, worker: Node) -> int:
    image = head.docker.find_image(engine.tag)
    if image is None:
        raise NodeError(f"{head.name}: {engine.tag} is not there")
    stream = _Compressed(head.docker.save_images([engine.tag]))
    try:
        with named(worker), console.step(f"image engine to {worker.name}") as step:
            worker.docker.load_images(stream.chunks(step, image.size_bytes))
    except NodeError as error:
        if stream.failure is not None:
            raise stream.failure from None
        raise _explained(error, worker, image, stream.read_bytes) from error
    with named(worker):
        there = find_built(worker.docker, engine)
    if there is None:
        raise NodeError(f"{worker.name}: {engine.tag} is not there after it was loaded")
    if (there.layers, there.configuration) != (image.layers, image.configuration):
        raise NodeError(
            f"{worker.name}: {engine.tag} is another image than {head.name}'s after it was loaded",
            hint=f"on {worker.name}: docker image rm {shlex.quote(engine.tag)}",
        )
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
                # The engine packs for a while before the archive flows: no rate is known yet.
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


def _explained(error: NodeError, worker: Node, image: ImageFact, read_bytes: int) -> NodeError:
    """Say `disk full` where that is why an engine hung up in the middle of an archive."""
    try:
        root = worker.docker.info().root_dir
        free_bytes = free_bytes_on(worker, Path(root))
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


@dataclass(frozen=True, slots=True)
class Difference:
    """What a worker lacks of a tree, or has otherwise."""

    missing: tuple[str, ...]
    changed: tuple[str, ...]
    size_bytes: int
    has_shared: bool
    """Whether some of it lies in a hub cache's shared store here; it is sent as plain files."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (*self.missing, *self.changed)


def send_weights(plan: Plan, nodes: Nodes, worker: Node, settings: Settings) -> int:
    """Make a node's folders hold what ours hold; return the bytes that were sent."""
    mapping = mapping_to(plan.observed, worker.name)
    if mapping is None:
        raise NodeError(f"{worker.name} did not name its user's home folder")
    models = (plan.observed.model, *plan.observed.companions)
    template = plan.folders.chat_template
    trees = sync_trees(models, template.path if template is not None else None, mapping)
    return sum(send_tree(tree, nodes.here, worker, settings) for tree in trees)


def send_tree(tree: SyncTree, head: Node, worker: Node, settings: Settings) -> int:
    """Make a worker's folder hold what ours holds; return the bytes that were sent.

    Raises CheckpointError when a file is still another one after it was sent, NodeError when
    there is no room or rsync fails; both name the node.
    """
    difference = compare(tree, head, worker, settings)
    if not difference.paths:
        return 0
    for path in difference.changed[:SHOWN_FILES]:
        console.warn(f"{worker.name}: {tree.there / path} differs from {head.name}'s; sent again")
    done = worker.script(f"mkdir -p {shlex.quote(str(tree.there))}")
    if done.exit_code != 0:
        raise NodeError(f"{worker.name}: {tree.there} cannot be made", detail=done.stderr.strip())
    sent_bytes = _send_files(tree, difference, worker)
    left = compare(tree, head, worker, settings)
    if left.paths:
        raise CheckpointError(
            f"{worker.name}: {tree.there / left.paths[0]} is not what {head.name} has, right after "
            "it was sent",
            hint=f"its disk may be failing: on {worker.name}: sudo dmesg | tail",
        )
    return sent_bytes


def compare(tree: SyncTree, head: Node, worker: Node, settings: Settings) -> Difference:
    """Hold a worker's files against ours, by sha256; unchanged files are not read again."""

    def list_and_hash(node: Node) -> tuple[Mapping[str, Entry], Mapping[str, str]]:
        root = tree.here if node is head else tree.there
        found = list_tree(node, root)
        used = {path: found[path] for path in tree.paths if path in found}
        return used, hashes(node, root, used, Ledger(settings.state_dir, node.name))

    with console.step(f"comparing {tree.here.name} with {worker.name}"):
        (ours, our_hashes), (theirs, their_hashes) = at_once(list_and_hash, (head, worker))
    missing = tuple(path for path in ours if path not in theirs)
    changed = tuple(
        path
        for path, entry in ours.items()
        if path in theirs
        and _said(entry, our_hashes.get(path)) != _said(theirs[path], their_hashes.get(path))
    )
    differing = [ours[path] for path in missing + changed]
    size_bytes = sum(entry.size_bytes for entry in differing)
    return Difference(missing, changed, size_bytes, any(entry.is_shared for entry in differing))


def _said(entry: Entry, digest: str | None) -> tuple[str, str | None]:
    """What must be equal: a link's letters, a file's content wherever it lies."""
    return entry.kind, entry.link if entry.kind == "l" else digest


def _send_files(tree: SyncTree, difference: Difference, worker: Node) -> int:
    if worker.link is None:
        raise NodeError(f"{worker.name} is this machine")
    title = f"{tree.here.name} to {worker.name} ({format_bytes(difference.size_bytes)})"
    with console.step(title) as step, shell.list_file(difference.paths) as names:
        argv = [
            *("rsync", "--archive", "--numeric-ids", "--ignore-times", "--no-implied-dirs"),
            *("--partial-dir", PARTIAL, "--no-inc-recursive", "--info=progress2", "--stats"),
            # Their store is theirs: the hub's library counts there who uses a file.
            *(("--copy-unsafe-links",) if difference.has_shared else ()),
            *("--files-from", str(names), "--rsh", worker.link.rsync_shell(worker.entry.ip)),
            *(f"{tree.here}/", worker.link.remote_path(f"{tree.there}/")),
        ]

        def show(text: str) -> None:
            for match in _PROGRESS.finditer(text):
                done_bytes = int(match[1].replace(",", ""))
                step.progress(done_bytes, max(difference.size_bytes, done_bytes))

        done = shell.follow(argv, show)
    if done.exit_code != 0:
        raise NodeError(
            f"{worker.name}: rsync could not send {tree.here.name} (exit code {done.exit_code}): "
            + next(iter(done.stderr.strip().splitlines()), "it said nothing"),
            hint="run it again: what arrived is kept",
            detail=done.stderr.strip(),
        )
    sent = _SENT.search(done.stdout)
    return int(sent[1].replace(",", "")) if sent else difference.size_bytes
