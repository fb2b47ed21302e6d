"""Make checkpoints on request, and look at them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint import contents
from sparkdeploy.checkpoint.contents import ModelSizes, model_sizes
from sparkdeploy.checkpoint.draft_vocabulary import (
    HINT,
    DraftVocabulary,
    count_tokens,
    rank_tokens,
    vocabulary_file,
    write_vocabulary,
)
from sparkdeploy.checkpoint.fp8 import expected_bytes
from sparkdeploy.checkpoint.fp8_shard import Order, fetch_shard, shard_folder
from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.prebuilt import fp8_bytes, fp8_origin, open_ranges, shard_store
from sparkdeploy.checkpoint.ranges import HubRanges, read_config
from sparkdeploy.checkpoint.standalone import build_standalone
from sparkdeploy.checkpoint.store import remove
from sparkdeploy.checkpoint.verify import Verified, verify_bytes
from sparkdeploy.commands.drafting import Request, connect, resolve
from sparkdeploy.console import console, format_bytes
from sparkdeploy.deploy.changing import changing
from sparkdeploy.deploy.deployments import list_deployments
from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.estimate.model_facts import read_shipped_facts
from sparkdeploy.node import facts
from sparkdeploy.plan.make import OVERLAY_WRITE_BYTES
from sparkdeploy.plan.observe import locate_model
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sparkdeploy.checkpoint.fp8 import Mismatch
    from sparkdeploy.checkpoint.fp8_shard import Fp8Shard
    from sparkdeploy.checkpoint.manifest import Manifest
    from sparkdeploy.checkpoint.source import CheckpointSource
    from sparkdeploy.checkpoint.store import Stored
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.recipe.schema import Checkpoint, Model, Recipe
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


def refuse_if_mounted(item: Stored, settings: Settings) -> None:
    """Raise NodeError naming the deployments that run from this folder, and how to stop them.

    A stopped one that needs it, also one that is kept for `rollback`, is told and stops nothing.
    Where no Docker Engine answers, nobody can say.
    """
    try:
        host = connect(settings)
    except NodeError as error:
        console.warn(f"whether a deployment uses {item.name} is not known: {error.message}")
        return
    with host:
        _refuse(item, host)


def remove_unmounted(item: Stored, settings: Settings) -> None:
    """Delete it; nothing is started meanwhile. Raises what `refuse_if_mounted` does."""
    with changing(settings, f"checkpoint rm {item.name}"):
        refuse_if_mounted(item, settings)
        remove(item, settings)


def _refuse(item: Stored, host: DockerHost) -> None:
    running: list[str] = []
    for deployment in list_deployments(host):
        users = list(_users(deployment.containers, item.path, host))
        if any(fact.is_running for fact in users):
            running.append(deployment.name)
        elif users:
            console.warn(f"{deployment.name} is stopped and will not start without {item.name}")
    if running:
        names = ", ".join(running)
        raise NodeError(
            f"{item.name} is in use by deployment {names}",
            hint=" && ".join(f"sparkdeploy down {name}" for name in running),
        )


def _users(
    containers: Iterable[ContainerFact], folder: Path, host: DockerHost
) -> Iterator[ContainerFact]:
    wanted = folder.resolve()
    for fact in containers:
        sources = host.mounted_from(fact.container_id)
        if any(Path(source).resolve().is_relative_to(wanted) for source in sources):
            yield fact


@dataclass(frozen=True, slots=True)
class Takes:
    """What making a recipe's checkpoint takes; None where nobody could say."""

    model: str
    is_here: bool
    known_from: str
    """Who states the sizes: files, the hub, or facts that were shipped and derived."""
    fetch_bytes: int | None
    write_bytes: int | None
    free_bytes: int | None
    hub_free_bytes: int | None
    standalone_bytes: int | None
    """What `--standalone` would write."""

    def lines(self) -> list[str]:
        """The answer for a person."""
        place = "is here" if self.is_here else "is not here"
        return [
            f"model {self.model} {place} (sizes: {self.known_from})",
            f"to fetch {_shown(self.fetch_bytes)}, free in the hub's cache "
            f"{_shown(self.hub_free_bytes)}",
            f"to write {_shown(self.write_bytes)}, free {_shown(self.free_bytes)}",
            f"--standalone would write {_shown(self.standalone_bytes)}",
        ]


@dataclass(frozen=True, slots=True)
class _Absent:
    """A model that is not here: bytes of its repository and of the FP8 tensors it would take."""

    known_from: str
    size_bytes: int | None
    fp8_bytes: int | None


def checkpoint_takes(recipe: str, assignments: Sequence[str], settings: Settings) -> Takes:
    """State bytes to fetch, bytes to write and free space; nothing is changed, not even a pin.

    The hub is asked about a model that is neither here nor pinned; where it does not answer, the
    shipped facts do.
    """
    resolved = resolve(Request(recipe, tuple(assignments)), settings).recipe
    located = locate_model(resolved, settings)
    fact = located.fact
    if not isinstance(fact, ModelFact) or located.source is None:
        return _takes_of_absent(resolved, _absent(resolved, settings), settings)
    to_fetch = fp8_bytes(resolved.checkpoint, located.source, settings)
    overlay = 0 if fact.overlay is None or fact.overlay.is_complete else OVERLAY_WRITE_BYTES
    return Takes(
        model=resolved.model.path or resolved.model.repo,
        is_here=True,
        known_from="the files",
        fetch_bytes=to_fetch,
        write_bytes=to_fetch + overlay,
        free_bytes=facts.free_bytes(settings.data_dir),
        hub_free_bytes=facts.free_bytes(settings.hub_cache),
        standalone_bytes=fact.size_bytes,
    )


def _takes_of_absent(recipe: Recipe, absent: _Absent, settings: Settings) -> Takes:
    parts = (absent.size_bytes, absent.fp8_bytes)
    known = [part for part in parts if part is not None]
    fetch_bytes = sum(known) if len(known) == len(parts) else None
    return Takes(
        model=recipe.model.repo,
        is_here=False,
        known_from=absent.known_from,
        fetch_bytes=fetch_bytes,
        write_bytes=None if fetch_bytes is None else fetch_bytes + OVERLAY_WRITE_BYTES,
        free_bytes=facts.free_bytes(settings.data_dir),
        hub_free_bytes=facts.free_bytes(settings.hub_cache),
        standalone_bytes=absent.size_bytes,
    )


def _absent(recipe: Recipe, settings: Settings) -> _Absent:
    takes_fp8 = recipe.checkpoint.fp8_dense.source is not None
    try:
        return _asked(recipe.model, settings, takes_fp8=takes_fp8)
    except CheckpointError as error:
        shipped = read_shipped_facts(resources() / "recipes" / "facts" / "models.yaml")
        known = shipped.get(recipe.model.repo)
        if known is None:
            return _Absent(f"nobody: {error.message}", None, None)
        shape = known.architecture
        sizes = ModelSizes(
            layers=shape.layers,
            hidden=shape.hidden_size,
            vocab=shape.vocab_size,
            experts=shape.num_experts,
            shared_expert_intermediate=shape.shared_expert_intermediate_size,
            mtp_layers=shape.mtp_num_hidden_layers,
            ties_embeddings=False,
        )
        fetch_bytes = expected_bytes(sizes) if takes_fp8 else 0
        said = f"shipped facts, derived, because {error.message}"
        return _Absent(said, known.total_bytes, fetch_bytes)


def _asked(model: Model, settings: Settings, *, takes_fp8: bool) -> _Absent:
    """What the hub says now, in one try, of the pinned commit or the branch."""
    hub = replace(open_hub(settings), attempts=1)
    pin = HubLock(settings.state_dir).pin(model.repo, model.revision)
    if pin is not None and pin.files:
        found, known_from = pin.facts(model.repo, model.revision), f"pinned at {pin.commit[:12]}"
    else:
        found = hub.describe(model.repo, pin.commit if pin is not None else model.revision)
        known_from = f"the hub, at {found.commit[:12]}"
    if not takes_fp8:
        return _Absent(known_from, found.size_bytes, 0)
    config = read_config(HubRanges(hub, found))
    return _Absent(known_from, found.size_bytes, expected_bytes(model_sizes(config)))


def _shown(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else format_bytes(size_bytes)


def count_for(
    recipe: str, assignments: Sequence[str], texts: Sequence[Path], settings: Settings
) -> DraftVocabulary:
    """Count the tokens of a recipe's model in files and in the files of folders; keep the order.

    Raises CheckpointError when the model is not here or when there is nothing to count.
    """
    wanted = resolve(Request(recipe, tuple(assignments)), settings).recipe
    source = locate_model(wanted, settings).source
    if source is None:
        raise CheckpointError(
            f"{wanted.model.repo} is not here, and its tokenizer is needed",
            hint=f"sparkdeploy checkpoint pull {recipe}",
        )
    files = [file for text in texts for file in _files(text)]
    with console.step(f"tokens of {len(files)} files") as step:
        seen = count_tokens(source.files_dir, files, on_progress=step.progress)
    if not seen.counts:
        raise CheckpointError("there is no text in what was named", hint=HINT)
    vocabulary = DraftVocabulary(
        tokens=rank_tokens(seen.counts, special=seen.special, vocabulary=seen.vocabulary),
        counted=sum(seen.counts.values()),
        distinct=len(seen.counts),
        texts=tuple(map(str, texts)),
    )
    write_vocabulary(vocabulary_file(wanted.model, settings), vocabulary)
    return vocabulary


def _files(text: Path) -> list[Path]:
    return sorted(path for path in text.rglob("*") if path.is_file()) if text.is_dir() else [text]
