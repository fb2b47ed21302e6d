"""`recipe source`: a source is added, brought up to date after its changes were shown, removed."""

import contextlib
import enum
import errno
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from sparkdeploy import __version__
from sparkdeploy.atomic_files import make_private
from sparkdeploy.authoring.source import files, git
from sparkdeploy.checkpoint import durable
from sparkdeploy.errors import CheckpointError, NodeError, RecipeError, SparkdeployError, UsageError
from sparkdeploy.recipe.library import library
from sparkdeploy.recipe.load import Library, look_into
from sparkdeploy.recipe.sources import (
    NAME,
    SNAPSHOT,
    TAKEN,
    Snapshot,
    SourceRecord,
    Sources,
    read_snapshot,
    snapshots,
)
from sparkdeploy.recipe.words import shown
from sparkdeploy.secret_shapes import masked_address
from sparkdeploy.settings import Settings
from sparkdeploy.stored_json import MAX_BYTES
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.safe_text import visible_line

PLACEHOLDER_COMMIT = "0" * 40
REPOSITORY = "repository.git"


class State(enum.StrEnum):
    UP_TO_DATE = "up to date"
    PENDING = "pending"
    TAKEN = "taken"


@dataclass(frozen=True, slots=True)
class SourceChange:
    before: SourceRecord
    after: SourceRecord
    lines: tuple[str, ...] = ()
    """What needs consent, and which files change how much."""
    state: State = State.PENDING


def add_source(name: str, origin: str, ref: str | None, settings: Settings) -> Snapshot:
    """Take a source for the first time; RecipeError for one that holds no recipe."""
    if NAME.fullmatch(name) is None:
        raise UsageError(
            f"{shown(name)} is no name of a source", hint="use lower-case letters, digits, . _ -"
        )
    sources = Sources.below(settings.state_dir)
    _refuse_taken(name, sources)
    local = _checked_folder(origin, ref)
    record = SourceRecord(name, str(local or origin), ref, PLACEHOLDER_COMMIT, "")
    with changing(name, sources):
        _refuse_taken(name, sources)  # by another process, while this one waited
        with _staged(record, settings) as staged:
            if not staged.snapshot.rows:
                mods = sum(file.endswith("/run.sh") for file in staged.taken.files)
                held = f"it holds {mods} mod{'s' * (mods > 1)}, for recipes in the same source"
                hint = f"{held} to name" if mods else None
                raise RecipeError(f"{masked_address(origin)} holds no recipe", hint=hint)
            staged.keep()
    return staged.snapshot


def update_source(
    name: str, agrees: Callable[[SourceChange], bool], settings: Settings
) -> SourceChange:
    sources = Sources.below(settings.state_dir)
    sources.get(name)  # before a lock is made for a name that is none
    with changing(name, sources):
        old = sources.get(name)
        with _staged(old.record, settings) as staged:
            record = staged.snapshot.record
            if record.commit == old.record.commit:
                if old.version != __version__:
                    staged.keep()
                return SourceChange(old.record, record, state=State.UP_TO_DATE)
            found = _differences(sources.files_of(name), staged.folder, library(settings))
            change = SourceChange(old.record, record, tuple(found))
            if not agrees(change):
                return change
            staged.keep()
    return replace(change, state=State.TAKEN)


def remove_source(name: str, settings: Settings) -> None:
    """Raises RecipeError where there is none, NodeError where it or files of it stay."""
    sources = Sources.below(settings.state_dir)
    is_there = NAME.fullmatch(name) is not None and (sources.folder / name).is_dir()
    if not is_there:
        sources.get(name)
    with changing(name, sources):
        _remove(sources.folder / name)


def _refuse_taken(name: str, sources: Sources) -> None:
    if sources.has(name):
        raise UsageError(
            f"there is a source {name} already",
            hint=f"sparkdeploy recipe source update {name}, or rm {name}",
        )


@dataclass(frozen=True, slots=True)
class _Staged:
    folder: Path
    target: Path
    snapshot: Snapshot
    taken: files.Taken

    def keep(self) -> None:
        durable.replace_folder(self.folder, self.target)


@contextlib.contextmanager
def _staged(record: SourceRecord, settings: Settings) -> Iterator[_Staged]:
    """Fetch, and write the files and their index beside those that were taken before."""
    target = Sources.below(settings.state_dir).folder / record.name / TAKEN
    is_new = not target.parent.is_dir()
    staged = durable.staging_path(target)
    make_private(staged)
    try:
        with console.step(f"source {record.name}") as step:
            step.say("fetching")
            taken, fetched = _take(record, staged)
            step.say(f"reading {len(taken.files)} files")
            now = datetime.now(UTC).isoformat(timespec="seconds")
            record = replace(record, commit=fetched.commit, ref=fetched.ref, taken_at=now)
            rows = tuple(files.rows_of(staged, taken.files, library(settings)))
            snapshot = Snapshot(record, __version__, rows)
            _write_index(staged / SNAPSHOT, snapshot)
        for reason, count in sorted(taken.left_out.items()):
            console.warn(f"source {record.name}: left out, {count} x {reason}")
        yield _Staged(staged, target, snapshot, taken)
    finally:
        remove_folder(staged)
        if is_new and not target.exists():
            remove_folder(target.parent)


def _write_index(path: Path, snapshot: Snapshot) -> None:
    """RecipeError for an index that could not be read again."""
    content = snapshots().dump_json(snapshot)
    if len(content) > MAX_BYTES:
        raise RecipeError(
            f"the index of the source's {len(snapshot.rows)} recipes is larger than"
            f" {MAX_BYTES >> 20} MiB",
            hint="its files have long names; a part of it as a folder of its own may do",
        )
    durable.write_text(path, content.decode())
    try:
        read_snapshot(path, snapshot.record.name)
    except ValueError as error:
        raise RecipeError(f"the source cannot be listed: {error}") from error


def _take(record: SourceRecord, into: Path) -> tuple[files.Taken, git.Fetched]:
    try:
        _checked_folder(record.origin, record.ref)
    except UsageError as error:
        raise NodeError(
            f"source {record.name}: {error.message}",
            hint="what was taken of it before stays as it is",
        ) from error
    place = durable.staging_path(into.with_name(REPOSITORY))
    try:
        repository = git.Repository(place)
        fetched = repository.fetch(record.origin, record.ref)
        return files.take_commit(repository, fetched.commit, into), fetched
    finally:
        remove_folder(place)


def _checked_folder(origin: str, ref: str | None) -> Path | None:
    """Return the folder of this machine that is meant; None for an address for git."""
    git.check_ref(ref)
    if not (origin.startswith(("/", "./", "../", "~")) or origin in (".", "..")):
        git.check_origin(origin)
        return None
    folder = Path(os.path.realpath(os.path.expanduser(origin)))  # noqa: PTH111 - never raises
    if not os.path.isdir(folder):  # noqa: PTH112 - as above
        raise UsageError(f"{shown(origin)} is no folder")
    if not str(folder).isprintable():
        raise UsageError(
            f"{shown(folder)} has a name that cannot be shown", hint="give the folder another name"
        )
    is_bare = (folder / "HEAD").is_file() and (folder / "objects").is_dir()
    if not is_bare and not (folder / ".git").exists():
        raise UsageError(
            f"{folder} is no git repository",
            hint="name its recipes by their files, or make it one: git init, git add, git commit",
        )
    return folder


def update_all(
    names: Sequence[str], agrees: Callable[[SourceChange], bool], settings: Settings
) -> tuple[list[SourceChange], SparkdeployError | None]:
    """Update these sources, or all; return what became of them, and the first failure."""
    changes: list[SourceChange] = []
    failures: list[SparkdeployError] = []
    for name in names or Sources.below(settings.state_dir).names():
        try:
            changes.append(update_source(name, agrees, settings))
        except SparkdeployError as error:
            if len(names) == 1:
                raise
            console.warn(f"{name}: {error.message}")
            failures.append(error)
    return changes, next(iter(failures), None)


def _differences(old: Path, new: Path, recipe_library: Library) -> Iterator[str]:
    """Yield what needs consent now, what needs it no more, and which files change how much."""
    # Folders of mods are found with links followed.
    before, after = (Path(os.path.realpath(folder)) for folder in (old, new))
    had, has = set(_consents(before, recipe_library)), set(_consents(after, recipe_library))
    yield from (f"+ consent: {it}" for it in sorted(has - had))
    yield from (f"- consent: {it}" for it in sorted(had - has))
    yield from git.diff_stat(before, after, without=SNAPSHOT)


def _consents(folder: Path, recipe_library: Library) -> Iterator[str]:
    """Yield what each recipe of a folder asks for, with all that it inherits."""
    for path in sorted(folder.rglob("*")):
        if not path.name.endswith(files.RECIPE_SUFFIXES) or not path.is_file():
            continue
        try:
            loaded = look_into(recipe_library, str(path))
        except RecipeError:
            continue
        for asked in loaded.consents:
            keys = ".".join(key for key in asked.path if isinstance(key, str))
            text = f"{path}: {keys}: {asked.message}"
            # A state that is looked at lies elsewhere than the one that was taken.
            yield visible_line(text.replace(f"{folder}/", "").replace(str(folder), "."))


@contextlib.contextmanager
def changing(name: str, sources: Sources) -> Iterator[None]:
    """Keep others from changing a source inside the block; remove what killed ones left."""
    place = sources.folder
    with disk_errors(place):
        make_private(place)
        with contextlib.ExitStack() as held:
            try:
                lock = durable.only_one(place / f".{name}.lock", f"source {name}")
                held.enter_context(lock)
            except CheckpointError as error:
                raise NodeError(error.message, hint=error.hint) from error
            durable.remove_leftovers(place / name)
            left = sources.files_of(name)
            if left.name != TAKEN:
                left.rename(place / name / TAKEN)
            yield


@contextlib.contextmanager
def disk_errors(place: Path) -> Iterator[None]:
    """Turn a full disk and its like into a NodeError that names the folder."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        look = f"{'df -h' if is_full else 'ls -ld'} {shlex.quote(str(error.filename or place))}"
        raise NodeError(
            f"{error.filename or place} cannot be written: {error.strerror or error}",
            hint=f"free some space on the disk of {place}: {look}" if is_full else look,
        ) from error


def _remove(place: Path) -> None:
    """Forget a source at once, and delete its files afterwards."""
    hidden = durable.staging_path(place)
    place.rename(hidden)
    durable.sync_folder(place.parent)
    try:
        remove_folder(hidden)
    except OSError as error:
        raise NodeError(
            f"source {place.name} is forgotten, and its files are still there: {error.strerror}",
            hint=f"rm -r {shlex.quote(str(hidden))}",
        ) from error


def remove_folder(folder: Path) -> None:
    """Raise OSError where it stays; a folder that is not there is fine."""
    with contextlib.suppress(FileNotFoundError):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink()
