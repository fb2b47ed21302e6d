"""The sources of a user, as they were taken: records, files and the index of each.

sources/NAME/repository.git    what git fetched; no file of it is ever checked out
sources/NAME/taken/            the recipes, templates and mods of one commit
sources/NAME/taken/.sparkdeploy-source   which commit of what that is, and its recipes' index
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence  # noqa: TC003 - pydantic reads it
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pydantic import TypeAdapter

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.words import nearest
from sparkdeploy.stored_json import MAX_BYTES, read_bytes
from sparkdeploy.terminal import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPOSITORY = "repository.git"
TAKEN = "taken"
SNAPSHOT = ".sparkdeploy-source"
MAX_NAMED = 8
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,30}")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """Where a source comes from, and what was taken of it."""

    name: str
    origin: str
    """A URL that git understands, or an absolute path."""
    ref: str | None
    """A branch, a tag or a commit; None for the branch that the repository calls its own."""
    commit: str
    """Of a folder without git: a hash over its files."""
    taken_at: str
    """UTC."""

    def __post_init__(self) -> None:
        if NAME.fullmatch(self.name) is None or _COMMIT.fullmatch(self.commit) is None:
            raise ValueError("a name or a commit that is none")


@dataclass(frozen=True, slots=True)
class RecipeRow:
    """What `recipe search` knows of one file without reading it."""

    name: str
    """What it is called behind the source's name: the shortest end of its path that is unique."""
    file: str
    """Relative to the source's top."""
    title: str
    model: str
    engine: str
    image: str
    drafts: str
    """`mtp 2`; empty without speculation."""
    min_nodes: int
    max_nodes: int | None
    consents: int
    """How many things of it need consent."""
    refusal: str
    """Why it is no recipe that can be served here; empty where it is one."""

    def holds(self, words: Sequence[str]) -> bool:
        text = f"{self.name} {self.file} {self.title} {self.model} {self.drafts}".lower()
        return all(word.lower() in text for word in words)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A source as it was taken: the record, and all its recipes as this program's version read
    them."""

    record: SourceRecord
    version: str
    rows: Sequence[RecipeRow]


@dataclass(frozen=True, slots=True)
class Sources:
    """The folder of a user's sources; RecipeError names what in it is not ours."""

    folder: Path

    @classmethod
    def below(cls, state_dir: Path) -> Self:
        return cls(state_dir / "sources")

    def names(self) -> list[str]:
        return sorted(path.parents[1].name for path in self.folder.glob(f"*/{TAKEN}/{SNAPSHOT}"))

    def files_of(self, name: str) -> Path:
        return self.folder / name / TAKEN

    def has(self, name: str) -> bool:
        return NAME.fullmatch(name) is not None and (self.files_of(name) / SNAPSHOT).is_file()

    def get(self, name: str) -> Snapshot:
        if not self.has(name):
            ways = "`sparkdeploy recipe source ls`, and `add NAME GIT_URL`"
            raise RecipeError(
                f"there is no source {visible_line(name)}", hint=nearest(name, self.names()) or ways
            )
        path = self.files_of(name) / SNAPSHOT
        try:
            return _snapshots().validate_json(read_bytes(path, MAX_BYTES))
        except (OSError, ValueError) as error:
            raise RecipeError(
                f"{path} cannot be used",
                hint=f"sparkdeploy recipe source rm {name}, and add it again",
            ) from error

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
            if rest in (row.name, row.file, _stem(row.file)):
                return self.files_of(name) / row.file
        same = [row.name for row in rows if row.name.rpartition("/")[2] == rest]
        if same:
            listed = ", ".join(f"{name}/{item}" for item in same[:MAX_NAMED])
            raise RecipeError(
                f"source {name} has {len(same)} recipes {visible_line(rest)}", hint=listed
            )
        raise RecipeError(
            f"source {name} has no recipe {visible_line(rest)}",
            hint=nearest(rest, [row.name for row in rows]) or "sparkdeploy recipe search WORD",
        )


@functools.cache
def _snapshots() -> TypeAdapter[Snapshot]:
    return TypeAdapter(Snapshot)


def snapshot_as_json(snapshot: Snapshot) -> str:
    return _snapshots().dump_json(snapshot).decode()


def short_names(files: Sequence[str]) -> Iterator[str]:
    """Yield for each file the shortest end of its path that no other one has, without `.yaml`."""
    stems = [_stem(file) for file in files]
    counts = Counter(end for stem in stems for end in set(_ends(stem)))
    for stem in stems:
        yield next((end for end in _ends(stem) if counts[end] == 1), stem)


def _ends(stem: str) -> list[str]:
    """Return the ends of a path, the shortest first."""
    parts = stem.split("/")
    return ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]


def _stem(file: str) -> str:
    return file.removesuffix(".yaml").removesuffix(".yml")
