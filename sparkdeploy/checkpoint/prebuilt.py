"""Prebuilt FP8 tensors of a recipe: which they are, and bringing them."""

from pathlib import Path

from sparkdeploy.checkpoint import fp8_shard, pull
from sparkdeploy.checkpoint.contents import model_sizes, read_config
from sparkdeploy.checkpoint.fp8 import expected_bytes
from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.ranges import FolderRanges, HubRanges, RangeSource
from sparkdeploy.checkpoint.repo_files import repo_and_revision
from sparkdeploy.checkpoint.source import CheckpointSource, open_folder, source_identity
from sparkdeploy.recipe.paths import is_folder
from sparkdeploy.recipe.schema import Checkpoint
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console


def fp8_origin(checkpoint: Checkpoint, settings: Settings) -> str:
    """Name the recipe's FP8 tensors to the commit, or to the state of a folder; no network.

    Empty when the recipe takes none; a repository that was not resolved yet is named as asked for.
    """
    source = _source_of(checkpoint)
    if not source:
        return ""
    if is_folder(source):
        return f"folder {source} {source_identity(open_folder(Path(source)))}"
    repo, revision = repo_and_revision(source)
    return f"{repo}@{HubLock(settings.state_dir).commit(repo, revision)}"


def resolve_fp8(checkpoint: Checkpoint, settings: Settings) -> bool:
    """Pin the FP8 repository's commit if it is not pinned; say whether that changed anything."""
    source = _source_of(checkpoint)
    if not source or is_folder(source):
        return False
    repo, revision = repo_and_revision(source)
    lock = HubLock(settings.state_dir)
    if lock.pin(repo, revision) is not None:
        return False
    pull.resolve(open_hub(settings), lock, repo, revision, anew=False)
    return True


def bring_fp8(
    checkpoint: Checkpoint,
    source: CheckpointSource,
    settings: Settings,
    *,
    leave_unfit: bool = False,
) -> fp8_shard.Fp8Shard | None:
    """Fetch the shard for a model by range, or find it; None when the recipe takes none."""
    resolve_fp8(checkpoint, settings)
    origin = fp8_origin(checkpoint, settings)
    if not origin:
        return None
    sizes = model_sizes(read_config(source.files_dir))
    order = fp8_shard.Order(sizes, origin, leave_unfit, source.files_dir)
    folder = fp8_shard.shard_folder(shard_store(settings), order)
    done = fp8_shard.read_shard(folder)
    if done is not None:
        return done
    ranges = _open_ranges(_source_of(checkpoint), settings)
    with console.step(f"FP8 tensors of {ranges.name}") as step:
        return fp8_shard.fetch_shard(ranges, order, folder, step.progress)


def fp8_bytes(checkpoint: Checkpoint, source: CheckpointSource, settings: Settings) -> int:
    """Bytes of FP8 tensors to download for a model; 0 when they are here."""
    origin = fp8_origin(checkpoint, settings)
    if not origin:
        return 0
    sizes = model_sizes(read_config(source.files_dir))
    folder = fp8_shard.shard_folder(shard_store(settings), fp8_shard.Order(sizes, origin))
    return expected_bytes(sizes) if fp8_shard.read_shard(folder) is None else 0


def shard_store(settings: Settings) -> Path:
    """Where fetched FP8 tensors are kept, so that every overlay over them fetches nothing."""
    return settings.data_dir / "m" / "fp8"


def _open_ranges(source: str, settings: Settings) -> RangeSource:
    if is_folder(source):
        return FolderRanges(open_folder(Path(source)).files_dir)
    hub, lock = open_hub(settings), HubLock(settings.state_dir)
    facts = pull.resolve(hub, lock, *repo_and_revision(source), anew=False)
    return HubRanges(hub, facts, hint="use mode online, which needs no FP8 repository")


def _source_of(checkpoint: Checkpoint) -> str:
    """A folder, or ORG/NAME[@REVISION]; empty when the recipe takes no prebuilt tensors."""
    fp8 = checkpoint.fp8_dense
    return fp8.source or "" if fp8.mode == "prebuilt" else ""
