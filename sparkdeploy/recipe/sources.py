"""The sources of a user, as they were taken: records, files and the index of each.

sources/NAME/taken/            the recipes, templates and mods of one commit
sources/NAME/taken/.sparkdeploy-source   which commit of what that is, and its recipes' index
"""

import functools
import os
import re
from collections.abc import (
    Iterator,
    Sequence,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.fields import Printable
from sparkdeploy.recipe.words import nearest, shortest_ends
from sparkdeploy.stored_json import MAX_BYTES, read_bytes
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.safe_text import visible_line

TAKEN = "taken"
SNAPSHOT = ".sparkdeploy-source"
MAX_NAMED = 8
MAX_COUNT = 1_000_000
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,30}")
_RETIRED = f".{TAKEN}.retired-*"


def is_plain_path(path: str) -> bool:
    """Whether a relative path leads to one place below a folder, and can be shown."""
    parts = path.split("/")
    is_odd = any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
    return not is_odd and path.isprintable() and "\\" not in path and not path.startswith("~")


def _plain_path(path: str) -> str:
    if not is_plain_path(path):
        raise ValueError("the path leads elsewhere")
    return path


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """Where a source comes from, and what was taken of it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    origin: Printable
    """A URL that git understands, or an absolute path."""
    ref: Printable | None
    """A branch, a tag or a commit; None for the branch that the repository calls its own."""
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    taken_at: Printable
    """UTC."""


@dataclass(frozen=True, slots=True)
class RecipeRow:
    """What `list WORD` knows of one file without reading it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: Printable
    """What it is called behind the source's name: the shortest end of its path that is unique."""
    file: Annotated[str, AfterValidator(_plain_path)]
    """Relative to the source's top."""
    title: Printable
    model: Printable
    engine: Printable
    image: Printable
    drafts: Printable
    """`mtp 2`; empty without speculation."""
    min_nodes: Count
    max_nodes: Count | None
    consents: Count
    """How many things of it need consent."""
    refusal: Printable
    """Why it is no recipe that can be served here; empty where it is one."""

    def holds(self, words: Sequence[str]) -> bool:
        text = f"{self.name} {self.file} {self.title} {self.model} {self.drafts}".lower()
        return all(word.lower() in text for word in words)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A source as it was taken: the record, and all its recipes as this program's version read
    them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    record: SourceRecord
    version: Printable
    rows: Sequence[RecipeRow]

    @property
    def usable(self) -> list[RecipeRow]:
        """Those that can be served here, with consent or without."""
        return [row for row in self.rows if not row.refusal]


@dataclass(frozen=True, slots=True)
class Sources:
    """The folder of a user's sources; RecipeError names what in it is not ours."""

    folder: Path

    @classmethod
    def below(cls, state_dir: Path) -> Self:
        return cls(state_dir / "sources")

    def names(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self.folder) if self.has(name))  # noqa: PTH208
        except OSError:
            return []

    def files_of(self, name: str) -> Path:
        """Return the folder of what was taken.

        Where a file system cannot exchange two folders, an update that was killed leaves the old
        one under its hidden name.
        """
        taken = self.folder / name / TAKEN
        left = () if os.path.isdir(taken) else sorted(taken.parent.glob(_RETIRED))  # noqa: PTH112
        return left[0] if left else taken

    def has(self, name: str) -> bool:
        if NAME.fullmatch(name) is None:
            return False
        return os.path.isfile(self.files_of(name) / SNAPSHOT)  # noqa: PTH113 - never raises

    def top_of(self, file: Path) -> Path | None:
        """Return the folder of the source that a file belongs to; None for one of no source."""
        here = Path(os.path.realpath(self.folder))
        real = Path(os.path.realpath(file))
        parts = real.relative_to(here).parts if real.is_relative_to(here) else ()
        return here.joinpath(*parts[:2]) if len(parts) > 2 else None

    def get(self, name: str) -> Snapshot:
        """RecipeError where there is none of that name, or its record is damaged."""
        if not self.has(name):
            ways = "`sparkdeploy recipe source ls`, and `add NAME GIT_URL`"
            raise RecipeError(
                f"there is no source {visible_line(name)}", hint=nearest(name, self.names()) or ways
            )
        path = self.files_of(name) / SNAPSHOT
        try:
            return read_snapshot(path, name)
        except (OSError, ValueError) as error:
            raise RecipeError(
                f"{path} cannot be used",
                hint=f"sparkdeploy recipe source rm {name}, and add it again",
            ) from error

    def readable(self) -> Iterator[Snapshot]:
        """Yield all sources; a damaged one is told, and keeps no other from being used."""
        for name in self.names():
            try:
                yield self.get(name)
            except RecipeError as error:
                console.warn(f"source {name} is left out: {error.message}; {error.hint}")

    def recipe_file(self, wanted: str) -> Path | None:
        """Return the file that SOURCE/RECIPE means; None for words that name no source.

        A recipe is called as its file, with folders before it where another one of the source is
        called the same.
        """
        name, slash, rest = wanted.partition("/")
        if not slash or not self.has(name):
            return None
        rows = self.get(name).rows
        for row in rows:
            if rest in (row.name, row.file, stem(row.file)):
                return self.files_of(name) / row.file
        same = [row.name for row in rows if row.name.rpartition("/")[2] == rest]
        if same:
            listed = ", ".join(f"{name}/{item}" for item in same[:MAX_NAMED])
            raise RecipeError(
                f"source {name} has {len(same)} recipes {visible_line(rest)}", hint=listed
            )
        raise RecipeError(
            f"source {name} has no recipe {visible_line(rest)}",
            hint=nearest(wanted, [f"{name}/{row.name}" for row in rows]) or "sparkdeploy list WORD",
        )


def stem(file: str) -> str:
    return file.removesuffix(".yaml").removesuffix(".yml")


@functools.cache
def snapshots() -> TypeAdapter[Snapshot]:
    return TypeAdapter(Snapshot)


def read_snapshot(path: Path, name: str) -> Snapshot:
    """Read what was written of a source; OSError or ValueError for what is damaged."""
    snapshot = snapshots().validate_json(read_bytes(path, MAX_BYTES), strict=True)
    if snapshot.record.name != name:
        raise ValueError("it is the record of another source")
    names = shortest_ends([stem(row.file) for row in snapshot.rows])
    if [row.name for row in snapshot.rows] != list(names):
        raise ValueError("a recipe of it is not called as its file is")
    return snapshot
