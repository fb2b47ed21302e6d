"""What the commands of `checkpoint` do: pull, verify, rm, build and draft-vocab."""

import contextlib
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sparkdeploy.checkpoint import draft_vocabulary
from sparkdeploy.checkpoint.cache import SNAPSHOTS, missing_in, repo_of
from sparkdeploy.checkpoint.contents import summary
from sparkdeploy.checkpoint.fp8_shard import check_shard, fetch_fp8, is_shard_folder
from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.manifest import Manifest
from sparkdeploy.checkpoint.pull import Pulled, WantedRepository, announce, fetch, planned_downloads
from sparkdeploy.checkpoint.repo_files import is_commit, printable, repo_and_revision
from sparkdeploy.checkpoint.safetensors import Header
from sparkdeploy.checkpoint.source import fetch_command, real_path
from sparkdeploy.checkpoint.standalone import build_standalone
from sparkdeploy.checkpoint.store import Stored, find_stored, remove
from sparkdeploy.checkpoint.verify import (
    CHANGED_HINT,
    Verified,
    changed,
    verify_bytes,
    verify_headers,
)
from sparkdeploy.deploy.deployments import deployments_in
from sparkdeploy.deploy.lock import deploy_lock, refuse_used
from sparkdeploy.deploy.nodes import connect
from sparkdeploy.deploy.request import Request, repositories_of, resolve
from sparkdeploy.errors import CheckpointError, NodeError, RecipeError, SparkdeployError
from sparkdeploy.node import facts
from sparkdeploy.node.container import ListedContainer
from sparkdeploy.node.host import DockerHost
from sparkdeploy.plan.models import locate_model
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.recipe.sources import Sources
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_bytes


def pull_repositories(
    name: str, settings: Settings, assignments: Sequence[str] = (), *, anew: bool, all_files: bool
) -> tuple[Pulled, ...]:
    """Download and verify `ORG/NAME[@REVISION]`, or a recipe's model and drafter.

    SOURCE/RECIPE is asked for before a repository of that name. `anew` asks the hub where each
    branch is now; `all_files` takes what vLLM does not read too. Raises CheckpointError: no access,
    no room, no network, or files that stay wrong.
    """
    wanted: Iterable[WantedRepository] = (
        [WantedRepository(*repo_and_revision(name))]
        if _is_of_hub(name, settings)
        else repositories_of(name, settings, assignments)
    )
    hub, lock = open_hub(settings), HubLock(settings.state_dir)
    if all_files:
        wanted = [replace(item, all_files=True) for item in wanted]
    downloads = [announce(hub, lock, item, anew=anew) for item in wanted]
    with console.steps(*planned_downloads(downloads)):
        return tuple(fetch(hub, lock, download) for download in downloads)


def _is_of_hub(name: str, settings: Settings) -> bool:
    """ORG/NAME, unless a source has a recipe that is called so."""
    if "/" not in name or name.startswith((".", "/", "~")) or name.endswith(".yaml"):
        return False
    with contextlib.suppress(RecipeError):  # an organisation may be called like a source
        return Sources.below(settings.state_dir).recipe_file(name) is None
    return True


def verify(folder: Path, settings: Settings, *, deep: bool) -> Verified:
    """Look at headers; `deep` reads all of each file whose hash is stated anywhere."""
    is_shard = is_shard_folder(folder)
    pins = HubLock(settings.state_dir).pins().values()
    files = next((pin.files for pin in pins if pin.files and pin.commit == folder.name), ())
    wrong = [file.name for file in missing_in(folder, files)]
    if lost := [name for name in wrong if not (folder / name).is_file()]:
        raise CheckpointError(
            f"{printable(folder)} has {len(files) - len(lost)} of {len(files)} files of its "
            f"download: {summary(lost)} is gone",
            hint=CHANGED_HINT,
        )
    if wrong:
        raise changed(folder, wrong, [])
    if not deep:
        return _of_shard(check_shard(folder)) if is_shard else verify_headers(folder)
    with console.step(f"every byte of {folder}") as step:
        if not is_shard:
            hashes = {file.name: file.blob_name for file in files}
            return verify_bytes(folder, hashes, step.progress)
        header = check_shard(folder, step.progress)
        return replace(_of_shard(header), hashed_files=1, hashed_bytes=header.file_size_bytes)


def _of_shard(header: Header) -> Verified:
    weights = sum(info.dtype == "F8_E4M3" for info in header.tensors.values())
    return Verified(files=1, tensors=len(header.tensors), fp8_weights=weights, mtp_tensors=0)


def unknown_hashes(name: str, folder: Path, found: Verified) -> SparkdeployError:
    """The error for files that were not compared with anything; it says how to get hashes."""
    count = len(found.unhashed)
    place = shlex.quote(str(folder))
    command = f"cd {place} && sha256sum * > ../{shlex.quote(folder.name)}.sha256"
    root = folder.parent.parent
    if folder.parent.name == SNAPSHOTS and root.name.startswith("models--"):
        commit = folder.name if is_commit(folder.name) else None
        command = fetch_command(repo_of(root), commit)
    return SparkdeployError(
        f"{printable(name)}: no hash is known of {count} of {count + found.hashed_files} files, "
        f"get them: {command}"
    )


def write_standalone(
    request: Request, out: Path, settings: Settings, *, overwrite: bool
) -> Manifest:
    """Write a recipe's model with FP8 shared experts as a checkpoint of its own."""
    recipe = resolve(request, settings).recipe
    located = locate_model(recipe, settings)
    source, fact = located.source, located.fact
    if source is None or not isinstance(fact, ModelFact):
        raise CheckpointError(
            f"{recipe.model.known_as} is not on this machine.",
            hint=f"sparkdeploy checkpoint pull {shlex.quote(recipe.model.known_as)}",
        )
    size_bytes, free_bytes = fact.size_bytes, facts.free_bytes(out.absolute().parent)
    if free_bytes is not None and size_bytes > free_bytes:
        raise CheckpointError(
            f"disk: {out} takes {format_bytes(size_bytes)}, {format_bytes(free_bytes)} are free.",
            hint="name a folder on another disk",
        )
    shard = fetch_fp8(recipe.checkpoint, source, settings)
    if shard is None:
        raise CheckpointError(
            "the recipe names no repository of FP8 tensors.",
            hint="--set checkpoint.fp8_dense.mode=prebuilt "
            "--set checkpoint.fp8_dense.source=Qwen/Qwen3.5-122B-A10B-FP8",
        )
    with console.step(f"standalone checkpoint {out}") as step:
        return build_standalone(source, shard, out, overwrite=overwrite, on_progress=step.progress)


def remove_stored(name: str, settings: Settings, consent: Callable[[str], bool]) -> Stored:
    """Raises NodeError while deployments run from it, before anybody is asked and again after."""
    item = find_stored(name, settings)
    _refuse_if_mounted(item, settings)
    size = format_bytes(item.size_bytes)
    if item.freed_bytes < item.size_bytes:
        size = f"{size}, of which other repositories keep all but {format_bytes(item.freed_bytes)}"
    if not consent(f"Delete {item.path} ({size})?"):
        raise SparkdeployError(f"{name} was not deleted", hint="say yes, or pass --yes")
    with deploy_lock(settings, f"checkpoint rm {name}"):
        refuse_used((name, str(item.path)), settings)
        _refuse_if_mounted(item, settings)
        remove(item, settings)
    return item


def _refuse_if_mounted(item: Stored, settings: Settings) -> None:
    """A stopped deployment that needs it, also one kept for `rollback`, is only named."""
    try:
        host = connect(settings)
    except NodeError as error:
        console.warn(f"whether a deployment uses {item.name} is not known: {error.message}")
        return
    with host:
        running = _running_from(item, host)
    if running:
        raise NodeError(
            f"{item.name} is in use by deployment {', '.join(running)}",
            hint=" && ".join(f"sparkdeploy down {name}" for name in running),
        )


def _running_from(item: Stored, host: DockerHost) -> list[str]:
    running: list[str] = []
    folder = real_path(item.path)

    def uses(fact: ListedContainer) -> bool:
        sources = map(Path, host.mounted_from(fact.container_id))
        return any(source.resolve().is_relative_to(folder) for source in sources)

    for deployment in deployments_in(host.own_containers()).values():
        users = [fact.is_running for fact in deployment.containers if uses(fact)]
        if any(users):
            running.append(deployment.name)
        elif users:
            console.warn(f"{deployment.name} is stopped and will not start without {item.name}")
    return running


def count_for(
    request: Request, texts: Sequence[Path], settings: Settings
) -> draft_vocabulary.DraftVocabulary:
    """Count the tokens of a recipe's model in files and in the files of folders; keep the order."""
    recipe = resolve(request, settings).recipe
    source = locate_model(recipe, settings).source
    if source is None:
        raise CheckpointError(
            f"{recipe.model.known_as} is not here, and its tokenizer is needed",
            hint=f"sparkdeploy checkpoint pull {shlex.quote(request.recipe)}",
        )
    files = [
        file
        for text in texts
        for file in (sorted(text.rglob("*")) if text.is_dir() else [text])
        if file == text or file.is_file()
    ]
    with console.step(f"tokens of {len(files)} files") as step:
        counted = draft_vocabulary.count_tokens(source.files_dir, files, on_progress=step.progress)
    if not counted.counted:
        raise CheckpointError("the named files hold no text", hint=draft_vocabulary.HINT)
    vocabulary = replace(counted, texts=tuple(map(str, texts)))
    draft_vocabulary.write_vocabulary(
        draft_vocabulary.vocabulary_file(recipe.model, settings), vocabulary
    )
    return vocabulary
