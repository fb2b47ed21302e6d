"""The sources of a user, as they were taken: records, files and the index of each.

sources/NAME/taken/            the recipes, templates and mods of one commit
sources/NAME/taken/.sparkdeploy-source   which commit of what that is, and its recipes' index
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.words import nearest
from sparkdeploy.stored_json import read_json
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.safe_text import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

TAKEN = "taken"
SNAPSHOT = ".sparkdeploy-source"
MAX_NAMED = 8
MAX_COUNT = 1_000_000
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,30}")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_RETIRED = f".{TAKEN}.retired-*"
_LOGIN = re.compile(r"(?<!ssh:)(?<!file:)//\S{0,1024}@|//[^/@\s]{0,256}:\S{0,1024}@")
"""A user alone is no secret where ssh asks for a key."""
_QUERY = re.compile(r"\?\S+")


def masked(text: str) -> str:
    """Return an address, or what git said of one, without passwords and tokens."""
    return _QUERY.sub("?***", _LOGIN.sub("//***@", text)) if "://" in text else text


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
        """ValueError for what was never written by us."""
        _require_lines(self.name, self.origin, self.commit, self.taken_at, self.ref or "")
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
            hint=nearest(wanted, [f"{name}/{row.name}" for row in rows])
            or "sparkdeploy recipe search WORD",
        )


def snapshot_as_json(snapshot: Snapshot) -> str:
    return json.dumps(asdict(snapshot))


def read_snapshot(path: Path, name: str) -> Snapshot:
    """Read what was written of a source; OSError or ValueError for what is damaged."""
    content = read_json(path)
    try:
        rows = [_checked(RecipeRow(**row)) for row in content["rows"]]
        snapshot = Snapshot(SourceRecord(**content["record"]), content["version"], rows)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it is no record of a source") from error
    _require_lines(snapshot.version)
    if snapshot.record.name != name:
        raise ValueError("it is the record of another source")
    return snapshot


def _checked(row: RecipeRow) -> RecipeRow:
    texts = (row.title, row.model, row.engine, row.image, row.drafts, row.refusal)
    _require_lines(row.name, row.file, *texts)
    _require_count(row.min_nodes, row.consents, row.max_nodes or 0)
    if not is_plain_path(row.file) or not f"/{stem(row.file)}".endswith(f"/{row.name}"):
        raise ValueError("a file that is none of a source")
    return row


def is_plain_path(path: str) -> bool:
    """Whether a relative path leads to one place below a folder, and can be shown."""
    parts = path.split("/")
    is_odd = any(part in ("", ".", "..") or part.lower() == ".git" for part in parts)
    return not is_odd and path.isprintable() and "\\" not in path and not path.startswith("~")


def _require_lines(*texts: Any) -> None:  # noqa: ANN401 - whatever JSON held
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise ValueError("a text that is none, or of several lines")


def _require_count(*numbers: Any) -> None:  # noqa: ANN401 - as above
    if not all(type(number) is int and 0 <= number <= MAX_COUNT for number in numbers):
        raise ValueError("a number that counts nothing")


def stem(file: str) -> str:
    """Return a recipe's file without `.yaml`."""
    return file.removesuffix(".yaml").removesuffix(".yml")
