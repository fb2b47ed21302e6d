"""Prepare what vLLM mounts, and the host folders a container writes to."""

from __future__ import annotations

import os
import secrets
import shlex
import stat
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.draft_vocabulary import ensure_vocabulary
from sparkdeploy.checkpoint.fp8_shard import fetch_fp8
from sparkdeploy.checkpoint.overlay import build_overlay
from sparkdeploy.deploy.lock import announced_lock
from sparkdeploy.deploy.sync import send_images, send_weights
from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.image.build import build_stage
from sparkdeploy.image.compilation import refuse_start
from sparkdeploy.image.pins import pull_below
from sparkdeploy.node.node import named
from sparkdeploy.plan.folders import write_template
from sparkdeploy.plan.launch import Exposure
from sparkdeploy.plan.models import conversion_for, locate_model
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.plan.steps import Action
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.step import PlannedStep
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sparkdeploy.image.stages import Stage
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.plan.steps import Plan
    from sparkdeploy.settings import Settings

KEY_BYTES = 32
BUILD_WAIT_S = 2 * 3600.0
"""An engine that is compiled takes longer than an hour."""


def prepare(plan: Plan, nodes: Nodes, settings: Settings) -> None:
    """Bring images, checkpoint and folders to what the plan says, on every node.

    Raises BuildError, CheckpointError or NodeError, which names the node.
    """
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
    """Build stages, lowest first; raise BuildError with the end of the log when one fails."""
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
    """Make the overlay if the plan asks for one; raise CheckpointError when it cannot be made."""
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
        if plan.deployment.exposure is Exposure.PUBLIC:
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
