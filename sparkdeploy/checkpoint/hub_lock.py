"""Which commit each repository was resolved to, kept until the user asks for a newer one."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from sparkdeploy.atomic_files import make_private
from sparkdeploy.checkpoint.cache import missing_in, snapshot_folder
from sparkdeploy.checkpoint.durable import disk_errors, only_one, write_text
from sparkdeploy.checkpoint.repo_files import RepoFacts, RepoFile, check_commit, is_commit, shown
from sparkdeploy.checkpoint.source import CheckpointSource, find_in_hub_cache, open_folder
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.schema import Weights
from sparkdeploy.settings import Settings
from sparkdeploy.stored_json import MAX_BYTES, read_json

LOCK_FILE = "hub-lock.json"


@dataclass(frozen=True, slots=True)
class RevisionPin:
    """What a branch or tag of a repository means on this machine.

    `files` is empty for a snapshot that was found in the cache and never asked of a hub.
    `is_verified` says that every file is here and has the size and hash the hub states.
    """

    commit: str
    license: str | None = None
    is_verified: bool = False
    files: tuple[RepoFile, ...] = ()

    def __post_init__(self) -> None:
        # It is the name of a folder.
        check_commit("a pin", self.commit)
        if not (self.license or "").isprintable():
            raise CheckpointError("its licence cannot be printed")

    def facts(self, repo: str, revision: str) -> RepoFacts:
        return RepoFacts(repo, revision, self.commit, self.license, self.files)

    @property
    def can_serve(self) -> bool:
        """Whether a deployment may run from its snapshot, as long as that is whole."""
        return self.is_verified or not self.files


Models = dict[str, dict[str, RevisionPin]]
"""By repository and revision."""


@dataclass(frozen=True, slots=True)
class _Content:
    models: Models
    schema: Literal[1]


@dataclass(frozen=True, slots=True)
class HubLock:
    """The pins of a state folder; reading needs no lock, writing takes one."""

    state_dir: Path

    @property
    def path(self) -> Path:
        return self.state_dir / LOCK_FILE

    def pin(self, repo: str, revision: str) -> RevisionPin | None:
        return self._read().get(repo, {}).get(revision)

    def pins(self) -> Mapping[tuple[str, str], RevisionPin]:
        return {
            (repo, revision): pin
            for repo, revisions in sorted(self._read().items())
            for revision, pin in sorted(revisions.items())
        }

    def set(self, repo: str, revision: str, pin: RevisionPin) -> None:
        self._change(lambda models: models.setdefault(repo, {}).update({revision: pin}))

    def forget(self, repo: str) -> None:
        self._change(lambda models: models.pop(repo, None))

    def _read(self) -> Models:
        try:
            return _reader().validate_python(read_json(self.path)).models
        except FileNotFoundError:
            return {}
        except ValidationError as error:
            place = ".".join(map(str, error.errors(include_input=False)[0]["loc"]))
            raise self._unusable(f"has no usable {shown(place)}") from error
        except CheckpointError as error:
            raise self._unusable(f"holds an entry that is not usable: {error.message}") from error
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise self._unusable(f"cannot be read: {reason}") from error

    def _unusable(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} {reason.rstrip('.')}.", hint="remove it to resolve revisions anew"
        )

    def _change(self, change: Callable[[Models], object]) -> None:
        make_private(self.state_dir)
        with only_one(self.path.with_suffix(".lock"), f"changes of {self.path}"):
            content = _Content(self._read(), 1)
            change(content.models)
            text = json.dumps(asdict(content), indent=1, sort_keys=True)
            if len(text) > MAX_BYTES:
                # It could not be read again.
                raise self._unusable(f"would be larger than {MAX_BYTES >> 20} MiB")
            with disk_errors(str(self.path)):
                write_text(self.path, text)


@cache
def _reader() -> TypeAdapter[_Content]:
    return TypeAdapter(_Content)


def find_pinned(
    repo: str, revision: str, hub_cache: Path, lock: HubLock
) -> CheckpointSource | None:
    """The cached snapshot that the revision means here, or None while it is not all there.

    A download of ours counts once every file was verified; a snapshot that other programs made
    counts as it is. Raises CheckpointError when files of it lead nowhere.
    """
    pin = lock.pin(repo, revision)
    if pin is None:
        return find_in_hub_cache(repo, revision, hub_cache)
    snapshot = snapshot_folder(hub_cache, repo, pin.commit)
    if not pin.can_serve or missing_in(snapshot, pin.files):
        return None
    return find_in_hub_cache(repo, pin.commit, hub_cache)


def find_source(weights: Weights, settings: Settings) -> CheckpointSource | None:
    """Open the folder that weights are named by, or find their repository as `find_pinned` does."""
    if weights.path is not None:
        return open_folder(Path(weights.path))
    lock = HubLock(settings.state_dir)
    return find_pinned(weights.source, weights.revision, settings.hub_cache, lock)


def pin_found(source: CheckpointSource, revision: str, lock: HubLock) -> None:
    """Keep the commit of a snapshot that was there before; a name of somebody's own is none."""
    commit = source.revision
    if commit is not None and is_commit(commit) and lock.pin(source.name, revision) is None:
        lock.set(source.name, revision, RevisionPin(commit))
