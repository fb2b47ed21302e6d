"""Prepare what a start needs on each node: images, checkpoint, weights and the host folders.

From the head to the other nodes goes what they lack by fingerprint or by hash: the engine with its
mods, and the files of the weights. What tops the engine, the plugin or the guard, is built on each
node.
"""

import os
import re
import secrets
import shlex
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from sparkdeploy import shell
from sparkdeploy.checkpoint.draft_vocabulary import ensure_vocabulary
from sparkdeploy.checkpoint.fp8_shard import fetch_fp8
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.deploy.lock import announced_lock
from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.image.build import build_stage, find_built
from sparkdeploy.image.compilation import refuse_start
from sparkdeploy.image.pins import pull_below
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.facts import free_bytes_on
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.node import Node, Nodes, at_once, named
from sparkdeploy.node.tree import Entry, Ledger, hashes, list_tree
from sparkdeploy.plan.folders import write_template
from sparkdeploy.plan.models import conversion_for, locate_model
from sparkdeploy.plan.observe import SyncTree, mapping_to, sync_trees
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.plan.steps import Action, Plan
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.step import PlannedStep, Step
from sparkdeploy.units import format_bytes

KEY_BYTES = 32
BUILD_WAIT_S = 2 * 3600.0
"""An engine that is compiled takes longer than an hour."""
GZIP = 31
FASTEST = 1
SHOWN_FILES = 3
PARTIAL = ".sparkdeploy-partial"
_PROGRESS = re.compile(r"(?<![\d,])([\d,]{1,32})[ \t]{1,16}\d{1,3}%")
_SENT = re.compile(r"^Total bytes sent: ([\d,]+)", re.MULTILINE)


def prepare(plan: Plan, nodes: Nodes, settings: Settings) -> None:
    """Bring images, checkpoint and folders to what the plan says, on every node."""
    missing = [image.stage for image in plan.images if image.action is Action.BUILD]
    build_stages(missing, nodes.here.docker, settings)
    prepare_checkpoint(plan, settings)
    if plan.folders.chat_template is not None:
        write_template(plan.folders.chat_template)
    for node, image_bytes in send_images(plan, nodes, settings).items():
        with named(node):
            weights_bytes = send_weights(plan, nodes, node, settings)
        console.info(
            f"{node.name}: {format_bytes(image_bytes + weights_bytes)} sent (engine "
            f"{format_bytes(image_bytes)}, weights {format_bytes(weights_bytes)})"
        )
    if plan.head.spec is not None:
        prepare_folders(plan, nodes)


def build_stages(missing: Sequence[Stage], host: DockerHost, settings: Settings) -> None:
    for stage in missing:
        if stage.unverified:
            console.warn(stage.unverified)
        if stage.source is not None:
            # Before the base is fetched: what cannot be compiled is not worth ten gigabytes.
            refuse_start(stage, host, settings)
    with console.steps(*(PlannedStep(f"image {stage.name}") for stage in missing)):
        for stage in missing:
            # Of two commands that need one image the first builds it, and the second finds it.
            with stage_lock(stage, settings):
                if host.find_image(stage.tag) is not None:
                    console.info(f"  {stage.tag} was built by another command")
                    continue
                pull_below(host, stage, settings)
                with console.step(f"image {stage.name}") as step:
                    fact = build_stage(host, stage, settings, step)
                console.info(f"  {stage.tag}, {format_bytes(fact.size_bytes)}")


def stage_lock(stage: Stage, settings: Settings) -> AbstractContextManager[None]:
    """Lock one image stage while it is built; NodeError names who builds it for too long."""
    name, command = f"{settings.node_name}-{stage.tag}", f"the build of {stage.tag}"
    return announced_lock(settings.lock_dir, name, command, wait_s=BUILD_WAIT_S)


def prepare_checkpoint(plan: Plan, settings: Settings) -> None:
    if plan.checkpoint.action is not Action.PREPARE:
        return
    located = locate_model(plan.resolved.recipe, settings)
    if located.source is None or not isinstance(located.fact, ModelFact):
        raise CheckpointError("the model was removed after the plan was made", hint="run it again")
    overlay = located.fact.overlay
    if overlay is None:
        return
    checkpoint = plan.resolved.recipe.checkpoint
    shard = fetch_fp8(checkpoint, located.source, settings)
    draft = ensure_vocabulary(plan.resolved.recipe, settings, located.source.files_dir)
    with console.step("checkpoint overlay"):
        conversion = conversion_for(located.source, plan.resolved.recipe, settings)
        result = build_overlay(located.source, conversion, overlay.path, shard, draft)
    shared = result.shared_int4_count
    console.info(
        f"  {overlay.path}: {result.fp8_layer_count} FP8 layers, "
        f"{f'{shared} INT4 layers of shared experts, ' if shared else ''}"
        f"{result.mtp_tensor_count} MTP tensors"
    )


def prepare_folders(plan: Plan, nodes: Nodes) -> None:
    """Make each node's cache folder, and a public deployment's key, for the container's user."""
    for planned in plan.nodes:
        if planned.spec is None or planned.folders is None:
            raise CheckpointError(f"{planned.node}: the model is not there")
        uid, gid = (int(number) for number in planned.spec.user.split(":"))
        if not planned.rank.is_head:
            _make_cache(nodes.node(planned.node), planned.folders.cache, planned.spec.user)
            continue
        planned.folders.cache.mkdir(parents=True, exist_ok=True)
        _give(planned.folders.cache, uid, gid, mode=0o755)
        if plan.deployment.is_public:
            _write_key(planned.folders.key_file, uid, gid)


def _make_cache(node: Node, cache: Path, user: str) -> None:
    folder = shlex.quote(str(cache))
    done = node.script(f"mkdir -p {folder} && if [ $(id -u) = 0 ]; then chown {user} {folder}; fi")
    if done.exit_code != 0:
        raise NodeError(f"{node.name}: {cache} cannot be made", detail=done.stderr.strip())


def _write_key(path: Path, uid: int, gid: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(KEY_BYTES) + "\n")
        console.info(f"made an API key: {path}")
    _give(path, uid, gid, mode=0o600)


def _give(path: Path, uid: int, gid: int, *, mode: int) -> None:
    status = path.stat()
    if (status.st_uid, status.st_gid) != (uid, gid):
        if os.geteuid() != 0:
            raise NodeError(
                f"{path} belongs to uid {status.st_uid}, but the container runs as {uid}, the "
                "owner of the model folder",
                hint=f"sudo chown -R {uid}:{gid} {shlex.quote(str(path))}",
            )
        os.chown(path, uid, gid)
    # Only the owner may do this, who is another user when the model is.
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)


def send_images(plan: Plan, nodes: Nodes, settings: Settings) -> dict[Node, int]:
    """Bring every other node the images; return the compressed bytes of the engine for each."""
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
        try:
            for chunk in self._archive:
                self.read_bytes += len(chunk)
                if self.read_bytes * 100 > total_bytes:
                    # The engine packs for a while before the archive flows: no rate is known yet.
                    step.progress(self.read_bytes, max(total_bytes, self.read_bytes))
                if packed := packer.compress(chunk):
                    self.sent_bytes += len(packed)
                    yield packed
        except NodeError as error:
            self.failure = error
            raise
        rest = packer.flush()
        self.sent_bytes += len(rest)
        yield rest


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


def send_weights(plan: Plan, nodes: Nodes, worker: Node, settings: Settings) -> int:
    mapping = mapping_to(plan.observed, worker.name)
    if mapping is None:
        raise NodeError(f"{worker.name} did not name its user's home folder")
    models = (plan.observed.model, *plan.observed.companions)
    template = plan.folders.chat_template
    trees = sync_trees(models, template.path if template is not None else None, mapping)
    return sum(send_tree(tree, nodes.here, worker, settings) for tree in trees)


def send_tree(tree: SyncTree, head: Node, worker: Node, settings: Settings) -> int:
    """Make a worker's folder hold what ours holds; return the bytes that were sent."""
    differing, changed = compare(tree, head, worker, settings)
    if not differing:
        return 0
    for path in changed[:SHOWN_FILES]:
        console.warn(f"{worker.name}: {tree.there / path} differs from {head.name}'s; sent again")
    done = worker.script(f"mkdir -p {shlex.quote(str(tree.there))}")
    if done.exit_code != 0:
        raise NodeError(f"{worker.name}: {tree.there} cannot be made", detail=done.stderr.strip())
    sent_bytes = _send_files(tree, differing, worker)
    left, _ = compare(tree, head, worker, settings)
    if left:
        raise CheckpointError(
            f"{worker.name}: {tree.there / next(iter(left))} is not what {head.name} has, right "
            "after it was sent",
            hint=f"its disk may be failing: on {worker.name}: sudo dmesg | tail",
        )
    return sent_bytes


def compare(
    tree: SyncTree, head: Node, worker: Node, settings: Settings
) -> tuple[dict[str, Entry], list[str]]:
    """Return what a worker lacks or has otherwise, by sha256, and which of it is there already."""

    def list_and_hash(node: Node) -> tuple[Mapping[str, Entry], Mapping[str, str]]:
        root = tree.here if node is head else tree.there
        found = list_tree(node, root)
        used = {path: found[path] for path in tree.paths if path in found}
        return used, hashes(node, root, used, Ledger(settings.state_dir, node.name))

    with console.step(f"comparing {tree.here.name} with {worker.name}"):
        (ours, our_hashes), (theirs, their_hashes) = at_once(list_and_hash, (head, worker))
    differing = {
        path: entry
        for path, entry in ours.items()
        if path not in theirs
        or _said(entry, our_hashes.get(path)) != _said(theirs[path], their_hashes.get(path))
    }
    return differing, [path for path in differing if path in theirs]


def _said(entry: Entry, digest: str | None) -> tuple[str, str | None]:
    """What must be equal: a link's letters, a file's content wherever it lies."""
    return entry.kind, entry.link if entry.kind == "l" else digest


def _send_files(tree: SyncTree, differing: Mapping[str, Entry], worker: Node) -> int:
    if worker.link is None:
        raise NodeError(f"{worker.name} is this machine")
    size_bytes = sum(entry.size_bytes for entry in differing.values())
    is_shared = any(entry.is_shared for entry in differing.values())
    title = f"{tree.here.name} to {worker.name} ({format_bytes(size_bytes)})"
    with console.step(title) as step:
        argv = [
            *("rsync", "--archive", "--numeric-ids", "--ignore-times", "--no-implied-dirs"),
            *("--partial-dir", PARTIAL, "--no-inc-recursive", "--info=progress2", "--stats"),
            # What lies in our hub cache's shared store goes as plain files. Their store is theirs:
            # the hub's library counts there who uses a file.
            *(("--copy-unsafe-links",) if is_shared else ()),
            *("--files-from", "-", "--rsh", worker.link.rsync_shell(worker.entry.ip)),
            *(f"{tree.here}/", worker.link.remote_path(f"{tree.there}/")),
        ]

        def show(text: str) -> None:
            for match in _PROGRESS.finditer(text):
                done_bytes = int(match[1].replace(",", ""))
                step.progress(done_bytes, max(size_bytes, done_bytes))

        names = "".join(f"{path}\n" for path in differing)
        done = shell.run(argv, stdin=names, on_text=show)
    if done.exit_code != 0:
        raise NodeError(
            f"{worker.name}: rsync could not send {tree.here.name} (exit code {done.exit_code}): "
            + next(iter(done.stderr.strip().splitlines()), "it said nothing"),
            hint="run it again: what arrived is kept",
            detail=done.stderr.strip(),
        )
    sent = _SENT.search(done.stdout)
    return int(sent[1].replace(",", "")) if sent else size_bytes
