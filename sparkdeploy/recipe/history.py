"""With which release of vLLM a flag or a name came and went.

recipes/engines/arguments/history.json is made of what the releases themselves said, one of each
minor version: `python -m sparkdeploy.recipe.history FILE... > history.json`.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping, Sequence  # noqa: TC003 - pydantic reads them
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from sparkdeploy.recipe.features import parse_version
from sparkdeploy.recipe.release import arguments_folder, read_release

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.recipe.release import Release

FLAGS = "flags"


@dataclass(frozen=True, slots=True)
class Life:
    """The releases that had a name: from the first, until before the one that had it not."""

    came: str
    went: str | None = None


@dataclass(frozen=True, slots=True)
class History:
    """The releases that were asked, and the life of each name that not all of them had."""

    releases: Sequence[str]
    lives: Mapping[str, Mapping[str, Life]] = field(default_factory=dict)
    """By kind: `flags`, and the kinds of `Release.names`."""


@functools.cache
def history() -> History:
    text = (arguments_folder() / "history.json").read_text(encoding="utf-8")
    return TypeAdapter(History).validate_json(text)


def history_of(found: Iterable[Release]) -> History:
    """Return when each name came and went; the oldest release's names came before it."""
    by_age = sorted(found, key=lambda release: parse_version(release.vllm))
    tables = [{FLAGS: release.spellings, **release.names} for release in by_age]
    versions = [release.vllm for release in by_age]
    always = Life(versions[0])
    lives: dict[str, dict[str, Life]] = {}
    for kind in tables[-1]:
        known = sorted({name for table in tables for name in table.get(kind, ())})
        told = {name: _life(name, kind, tables, versions) for name in known}
        lives[kind] = {name: life for name, life in told.items() if life != always}
    return History(versions, lives)


def history_text(made: History) -> str:
    """Return the file, a value a line, so that a change shows where it is."""
    return json.dumps(TypeAdapter(History).dump_python(made, exclude_none=True), indent=1) + "\n"


def _life(
    name: str, kind: str, tables: Sequence[Mapping[str, Iterable[str]]], versions: Sequence[str]
) -> Life:
    has = [name in table.get(kind, ()) for table in tables]
    last = len(has) - 1 - has[::-1].index(True)
    return Life(versions[has.index(True)], versions[last + 1] if last + 1 < len(has) else None)


if __name__ == "__main__":
    sys.stdout.write(history_text(history_of(read_release(Path(name)) for name in sys.argv[1:])))
