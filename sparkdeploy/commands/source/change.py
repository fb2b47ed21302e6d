"""`recipe source`: a source is added, brought up to date after its changes were shown, removed."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import __version__
from sparkdeploy.checkpoint import durable
from sparkdeploy.commands.source import files, git
from sparkdeploy.commands.source.index import rows_of
from sparkdeploy.console import console
from sparkdeploy.errors import RecipeError, SparkdeployError, UsageError
from sparkdeploy.node.private_folder import make_private, write_private
from sparkdeploy.recipe.harmless import shown
from sparkdeploy.recipe.load import library, look_into
from sparkdeploy.recipe.sources.shelf import (
    NAME,
    REPOSITORY,
    SNAPSHOT,
    Snapshot,
    SourceRecord,
    Sources,
    snapshot_as_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.settings import Settings

MAX_VALUES = 12
"""How many changed values of one recipe are named."""
PLACEHOLDER_COMMIT = "0" * 40


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What another state of a source brings."""

    before: SourceRecord
    after: SourceRecord
    lines: tuple[str, ...]
    """Added, removed and changed recipes, each with what is other in it."""


def add_source(name: str, origin: str, ref: str | None, settings: Settings) -> Snapshot:
    """Take a source for the first time.

    Raises UsageError for a name or an address that is none, NodeError where git cannot fetch it,
    and RecipeError for a source that holds no recipe.
    """
    if NAME.fullmatch(name) is None:
        raise UsageError(
            f"{shown(name)} is no name of a source", hint="use lower-case letters, digits, . _ -"
        )
    if Sources.below(settings.state_dir).has(name):
        raise UsageError(
            f"there is a source {name} already",
            hint=f"sparkdeploy recipe source update {name}, or rm {name}",
        )
    local = _local_folder(origin)
    if local is None:
        git.check_origin(origin)
    git.check_ref(ref)
    if local is not None and not _has_git(local) and ref is not None:
        raise UsageError(f"{local} is no git repository, so there is no {shown(ref)} in it")
    record = SourceRecord(name, str(local or origin), ref, PLACEHOLDER_COMMIT, "")
    with _changing(name, settings), _staged(record, settings) as staged:
        if not staged.snapshot.rows:
            raise RecipeError(f"{shown(origin)} holds no recipe")
        staged.keep()
    return staged.snapshot


def update_source(
    name: str, agrees: Callable[[SourceChange], bool], settings: Settings
) -> SourceChange | None:
    """Fetch a source anew and take it once its changes were agreed to.

    None where nothing is new, or nobody agreed. Raises as `add_source` does.
    """
    sources = Sources.below(settings.state_dir)
    with _changing(name, settings):
        old = sources.get(name)
        with _staged(old.record, settings) as staged:
            if staged.snapshot.record.commit == old.record.commit:
                if old.version != __version__:
                    staged.keep()
                return None
            lines = tuple(_differences(sources.files_of(name), staged.folder, settings))
            change = SourceChange(old.record, staged.snapshot.record, lines)
            if not agrees(change):
                return None
            staged.keep()
    return change


def remove_source(name: str, settings: Settings) -> None:
    sources = Sources.below(settings.state_dir)
    if not sources.has(name):
        sources.get(name)
    with _changing(name, settings):
        files.remove_folder(sources.folder / name)


@dataclass(frozen=True, slots=True)
class _Staged:
    folder: Path
    target: Path
    snapshot: Snapshot

    def keep(self) -> None:
        with durable.disk_errors(f"source {self.snapshot.record.name}"):
            durable.replace_folder(self.folder, self.target)


@contextlib.contextmanager
def _staged(record: SourceRecord, settings: Settings) -> Iterator[_Staged]:
    """Fetch, and write the files and their index beside those that were taken before."""
    sources = Sources.below(settings.state_dir)
    target = sources.files_of(record.name)
    is_new = not target.exists()
    staged = durable.hidden_beside(target)
    make_private(staged)
    try:
        with console.step(f"source {record.name}") as step:
            step.say("fetching")
            taken, commit = _take(record, sources.folder / record.name, staged)
            step.say(f"reading {len(taken.files)} files")
            now = datetime.now(UTC).isoformat(timespec="seconds")
            record = replace(record, commit=commit, taken_at=now)
            rows = tuple(rows_of(staged, taken.files, library(settings)))
            snapshot = Snapshot(record, __version__, rows)
            write_private(staged / SNAPSHOT, snapshot_as_json(snapshot))
        for reason, count in sorted(taken.left_out.items()):
            console.warn(f"source {record.name}: left out, {count} x {reason}")
        yield _Staged(staged, target, snapshot)
    finally:
        files.remove_folder(staged)
        if is_new and not target.exists():
            files.remove_folder(sources.folder / record.name)


def _take(record: SourceRecord, place: Path, into: Path) -> tuple[files.Taken, str]:
    local = _local_folder(record.origin)
    if local is not None and not _has_git(local):
        return files.take_folder(local, into)
    repository = git.Repository(place / REPOSITORY)
    commit = repository.fetch(record.origin, record.ref)
    return files.take_commit(repository, commit, into), commit


def _local_folder(origin: str) -> Path | None:
    """Return the folder of this machine that is meant; None for an address."""
    is_written_so = origin.startswith(("/", "./", "../", "~")) or origin in (".", "..")
    if not is_written_so:
        return None
    folder = Path(origin).expanduser().resolve()
    if not folder.is_dir():
        raise UsageError(f"{shown(origin)} is no folder")
    return folder


def _has_git(folder: Path) -> bool:
    is_bare = (folder / "HEAD").is_file() and (folder / "objects").is_dir()
    return (folder / ".git").exists() or is_bare


@contextlib.contextmanager
def _changing(name: str, settings: Settings) -> Iterator[None]:
    place = Sources.below(settings.state_dir).folder
    make_private(place)
    with durable.only_one(place / f".{name}.lock", f"source {name}"):
        yield


def _differences(old: Path, new: Path, settings: Settings) -> Iterator[str]:
    """Yield what changes, recipe by recipe; a changed mod or template is named by its file."""
    before, after = _listed(old), _listed(new)
    yield from (f"+ {path}" for path in sorted(after.keys() - before.keys()))
    yield from (f"- {path}" for path in sorted(before.keys() - after.keys()))
    for path in sorted(before.keys() & after.keys()):
        if before[path] == after[path]:
            continue
        yield f"~ {path}"
        if path.endswith(files.RECIPE_SUFFIXES):
            yield from (f"    {line}" for line in _changed_values(old / path, new / path, settings))


def _listed(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != SNAPSHOT)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def _changed_values(old: Path, new: Path, settings: Settings) -> list[str]:
    """Return the values that another file of the same recipe sets otherwise, and new consents."""
    before, after = _values(old, settings), _values(new, settings)
    if before is None or after is None:
        return ["it is no recipe that can be read" if after is None else "it can be read now"]
    lines = [
        f"{name}: {_said(before.get(name))} -> {_said(after.get(name))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    more = len(lines) - MAX_VALUES
    return [*lines[:MAX_VALUES], *([f"and {more} more"] if more > 0 else [])]


def _values(path: Path, settings: Settings) -> dict[str, Any] | None:
    try:
        loaded = look_into(library(settings), str(path))
    except RecipeError:
        return None
    if loaded.recipe is None:
        return None
    values = dict(_leaves(loaded.recipe.model_dump(by_alias=True, mode="json"), ""))
    asked = sorted(question.message for question in loaded.consents)
    return values | {"needs consent": asked or None}


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any value
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _said(value: Any) -> str:  # noqa: ANN401 - any value
    return "-" if value is None else shown(json.dumps(value, ensure_ascii=False))


def update_all(
    names: Sequence[str], agrees: Callable[[SourceChange], bool], settings: Settings
) -> list[SourceChange]:
    """Update these sources, or all; one that fails is told and keeps no other from being taken."""
    changes, failures = [], []
    for name in names or Sources.below(settings.state_dir).names():
        try:
            if change := update_source(name, agrees, settings):
                changes.append(change)
        except SparkdeployError as error:
            if names[1:] or not names:
                console.warn(f"{name}: {error.message}")
                failures.append(error)
            else:
                raise
    if failures:
        raise failures[0]
    return changes
