"""Make checkpoints on request, and look at them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint import contents
from sparkdeploy.checkpoint.fp8_shard import Order, fetch_shard, shard_folder
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.prebuilt import fp8_origin, open_ranges, shard_store
from sparkdeploy.checkpoint.standalone import build_standalone
from sparkdeploy.checkpoint.verify import Verified, verify_bytes
from sparkdeploy.commands.drafting import Request, resolve
from sparkdeploy.console import console, format_bytes
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node import facts
from sparkdeploy.plan.observe import locate_model
from sparkdeploy.plan.observed import ModelFact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sparkdeploy.checkpoint.fp8 import Mismatch
    from sparkdeploy.checkpoint.fp8_shard import Fp8Shard
    from sparkdeploy.checkpoint.manifest import Manifest
    from sparkdeploy.checkpoint.source import CheckpointSource
    from sparkdeploy.recipe.schema import Checkpoint
    from sparkdeploy.settings import Settings


def write_standalone(
    recipe: str,
    assignments: Sequence[str],
    out: Path,
    settings: Settings,
    *,
    mismatch: Mismatch,
    replaces: Callable[[Path], bool],
) -> Manifest:
    """Write a recipe's model with FP8 shared experts as a checkpoint of its own.

    Raises CheckpointError when the model is not here, the recipe names no FP8 source, or the
    source does not hold what the model needs.
    """
    resolved = resolve(Request(recipe, tuple(assignments)), settings).recipe
    located = locate_model(resolved, settings)
    if located.source is None or not isinstance(located.fact, ModelFact):
        raise CheckpointError(
            f"{resolved.model.repo} is not on this machine.",
            hint=f"sparkdeploy checkpoint pull {resolved.model.repo}",
        )
    _check_room(located.fact.size_bytes, out)
    shard = _shard_for(resolved.checkpoint, located.source, settings, mismatch)
    with console.step(f"standalone checkpoint {out}") as step:
        return build_standalone(
            located.source, shard, out, replaces=replaces, on_progress=step.progress
        )


def verify_deep(folder: Path, settings: Settings) -> Verified:
    """Check a checkpoint to the last bit that anybody has stated a hash of."""
    with console.step(f"every byte of {folder}") as step:
        return verify_bytes(folder, _stated_hashes(folder, settings), step.progress)


def find_folder(name: str, settings: Settings) -> Path:
    """The folder that a name means: itself, a prepared checkpoint, or a download that is pinned.

    Raises CheckpointError when it means none of them.
    """
    for candidate in (Path(name).expanduser(), settings.data_dir / "m" / "ck" / name):
        if (candidate / "config.json").is_file():
            return candidate.absolute()
    repo, _, revision = name.partition("@")
    pin = HubLock(settings.state_dir).pin(repo, revision or "main")
    if pin is not None:
        folder = settings.hub_cache / f"models--{repo.replace('/', '--')}" / "snapshots"
        return folder / pin.commit
    raise CheckpointError(
        f"{name} is no checkpoint on this machine.", hint="`sparkdeploy checkpoint ls` shows them"
    )


def _shard_for(
    checkpoint: Checkpoint, source: CheckpointSource, settings: Settings, mismatch: Mismatch
) -> Fp8Shard:
    origin = fp8_origin(checkpoint, settings)
    if not origin:
        raise CheckpointError(
            "the recipe names no repository of FP8 tensors.",
            hint="--set checkpoint.fp8_dense.mode=prebuilt "
            "--set checkpoint.fp8_dense.source=Qwen/Qwen3.5-122B-A10B-FP8",
        )
    ranges = open_ranges(checkpoint.fp8_dense.source or "", settings)
    # Opening it has pinned the commit.
    origin = fp8_origin(checkpoint, settings)
    sizes = contents.model_sizes(contents.read_config(source.files_dir))
    order = Order(sizes, origin, mismatch, source.files_dir)
    folder = shard_folder(shard_store(settings), order)
    with console.step(f"FP8 tensors of {ranges.name}") as step:
        return fetch_shard(ranges, order, folder, step.progress)


def _check_room(size_bytes: int, out: Path) -> None:
    free_bytes = facts.free_bytes(out.absolute().parent)
    if free_bytes is not None and size_bytes > free_bytes:
        raise CheckpointError(
            f"disk: {out} takes {format_bytes(size_bytes)}, {format_bytes(free_bytes)} are free.",
            hint="name a folder on another disk",
        )


def _stated_hashes(folder: Path, settings: Settings) -> dict[str, str]:
    """What the hub said of the files of this very commit."""
    for pin in HubLock(settings.state_dir).pins().values():
        if pin.commit == folder.name:
            return {file.name: file.sha256 for file in pin.files if file.sha256 is not None}
    return {}
