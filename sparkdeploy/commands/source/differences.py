"""What another state of a source brings: files, values, and the code that recipes of it run."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy.commands.source.files import RECIPE_SUFFIXES
from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.harmless import shown
from sparkdeploy.recipe.load import look_into
from sparkdeploy.recipe.sources.shelf import SNAPSHOT
from sparkdeploy.terminal import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.recipe.load import Library, Loaded

MAX_VALUES = 12
"""How many changed values of one recipe are named."""
MAX_ADDED_LINES, MAX_REMOVED_LINES = 16, 8
"""Of one file that is no recipe. Each has its own, so that neither hides the other."""
MAX_USERS = 8
MAX_TEXT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _File:
    digest: str
    is_executable: bool


@dataclass(frozen=True, slots=True)
class _Told:
    """What a recipe says with all that it inherits, its paths as seen from the source's top."""

    values: Mapping[str, str]
    consents: frozenset[str]
    uses: tuple[str, ...]
    """Its chat template, and the folders of its mods."""


@dataclass(frozen=True)
class _State:
    """One state of a source: its folder, and what its recipes say."""

    folder: Path
    shelf: Library
    files: Mapping[str, _File] = field(init=False)

    def __post_init__(self) -> None:
        """List the files, but for our own record at the top."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        named = {path.relative_to(self.folder).as_posix(): path for path in paths}
        named.pop(SNAPSHOT, None)
        object.__setattr__(self, "files", {name: _file(path) for name, path in named.items()})

    @functools.cached_property
    def recipes(self) -> Mapping[str, _Told]:
        names = (name for name in sorted(self.files) if name.endswith(RECIPE_SUFFIXES))
        found = {name: self.told(name) for name in names}
        return {name: told for name, told in found.items() if told is not None}

    def told(self, name: str) -> _Told | None:
        """Return what a recipe says; None for a file that is none, or cannot be read."""
        try:
            loaded = look_into(self.shelf, str(self.folder / name))
        except RecipeError:
            return None
        return _told(loaded, self.folder) if loaded.recipe is not None else None

    def content(self, name: str) -> bytes:
        return (self.folder / name).read_bytes() if name in self.files else b""

    def users(self, name: str) -> set[str]:
        """Return the recipes that use a file, by itself or as a part of a mod."""
        return {
            recipe
            for recipe, told in self.recipes.items()
            if any(name == used or name.startswith(f"{used}/") for used in told.uses)
        }


def differences(old: Path, new: Path, shelf: Library) -> Iterator[str]:
    """Yield what changes, file by file; for a recipe also what needs consent, and its values.

    A recipe whose own file stays changes with one that it extends.
    """
    # Folders of mods are found with links followed.
    before, after = (_State(Path(os.path.realpath(folder)), shelf) for folder in (old, new))
    changed = {name for name in _names(before, after) if _is_other(name, before, after)}
    for sign, names in (
        ("+", changed - before.files.keys()),
        ("-", changed - after.files.keys()),
        ("~", changed & before.files.keys() & after.files.keys()),
    ):
        for name in sorted(names):
            yield f"{sign} {visible_line(name)}"
            yield from (f"    {line}" for line in _details(name, before, after))
    if any(name.endswith(RECIPE_SUFFIXES) for name in changed):
        yield from _inherited(changed, before, after)


def _names(before: _State, after: _State) -> set[str]:
    return {*before.files, *after.files}


def _is_other(name: str, before: _State, after: _State) -> bool:
    return before.files.get(name) != after.files.get(name)


def _inherited(changed: set[str], before: _State, after: _State) -> Iterator[str]:
    """Yield the recipes that say something else although their own files stay."""
    for name in sorted(_names(before, after) - changed):
        if not name.endswith(RECIPE_SUFFIXES) or not _may_extend(after.content(name)):
            continue
        lines = _recipe_changes(before.told(name), after.told(name))
        if lines:
            yield f"~ {visible_line(name)} (by what it extends)"
            yield from (f"    {line}" for line in lines)


def _may_extend(content: bytes) -> bool:
    """Whether `extends` may stand in a YAML file; an escape may write any letter."""
    return b"extends" in content or b"\\" in content


def _details(name: str, before: _State, after: _State) -> Iterator[str]:
    if name in before.files and name in after.files:
        is_executable = after.files[name].is_executable
        if before.files[name].is_executable != is_executable:
            yield "it is executable now" if is_executable else "it is executable no more"
    if name.endswith(RECIPE_SUFFIXES):
        told = before.told(name), after.told(name)
        if any(told):
            lines = _recipe_changes(*told, is_new=name not in before.files)
            yield from lines or ([] if None in told else ["what it says stays the same"])
            return
    yield from _text_changes(before.content(name), after.content(name))
    users = sorted(before.users(name) | after.users(name))
    if users:
        more = f" and {len(users) - MAX_USERS} more" if users[MAX_USERS:] else ""
        yield f"used by {', '.join(map(visible_line, users[:MAX_USERS]))}{more}"


def _recipe_changes(
    before: _Told | None, after: _Told | None, *, is_new: bool = False
) -> list[str]:
    """Return what needs consent in full and first, then the values that are others."""
    had, has = (told.consents if told else frozenset() for told in (before, after))
    lines = [f"+ consent: {consent}" for consent in sorted(has - had)]
    lines += [f"- consent: {consent}" for consent in sorted(had - has)]
    if after is None:
        return [*lines, "it is no recipe that can be read"] if before is not None else lines
    if before is None:
        return lines if is_new else [*lines, "it can be read now"]
    others = [
        name
        for name in sorted(before.values.keys() | after.values.keys())
        if before.values.get(name) != after.values.get(name)
    ]
    for name in others[:MAX_VALUES]:
        lines += _value_changes(name, before.values.get(name, ""), after.values.get(name, ""))
    return lines + _capped(others, MAX_VALUES, "values")[MAX_VALUES:]


def _value_changes(name: str, old: str, new: str) -> list[str]:
    if "\n" not in f"{old}{new}".strip():
        return [f"{shown(name)}: {shown(old or '-')} -> {shown(new or '-')}"]
    changes = _text_changes(*(text.encode(errors="surrogatepass") for text in (old, new)))
    return [f"{shown(name)}:", *(f"    {line}" for line in changes)]


def _text_changes(old: bytes, new: bytes) -> list[str]:
    """Return lines that came and went. No best match is sought: a stranger chose the texts."""
    sizes = f"{len(old)} bytes -> {len(new)} bytes"
    if max(len(old), len(new)) > MAX_TEXT_BYTES:
        return [f"{sizes}, too long to be shown"]
    try:
        before, after = old.decode().splitlines(), new.decode().splitlines()
    except UnicodeDecodeError:
        return [f"{sizes}, no text"] if old != new else []
    rest = "lines; `sparkdeploy plan RECIPE --show mods` shows all of a mod"
    added = [f"+ {shown(line)}" for line in _more(after, before)]
    removed = [f"- {shown(line)}" for line in _more(before, after)]
    if old != new and not added and not removed:
        return ["the same lines in another order, or with other line ends"]
    return _capped(added, MAX_ADDED_LINES, rest) + _capped(removed, MAX_REMOVED_LINES, rest)


def _more(lines: Sequence[str], others: Sequence[str]) -> Iterator[str]:
    """Yield the lines that are here more often than there."""
    left = Counter(lines) - Counter(others)
    for line in lines:
        if left[line] > 0:
            left[line] -= 1
            yield line


def _capped(lines: list[str], limit: int, what: str) -> list[str]:
    more = len(lines) - limit
    return [*lines[:limit], *([f"and {more} more {what}"] if more > 0 else [])]


def _file(path: Path) -> _File:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return _File(digest, bool(path.stat().st_mode & stat.S_IXUSR))


def _told(loaded: Loaded, folder: Path) -> _Told:
    assert loaded.recipe is not None  # noqa: S101 - asked of readable ones alone
    leaves = _leaves(loaded.recipe.model_dump(by_alias=True, mode="json"), "")
    values = {
        name: _relative(_as_text(value), folder) for name, value in leaves if value is not None
    }
    consents = {
        f"{'.'.join(key for key in asked.path if isinstance(key, str))}: {asked.message}"
        for asked in loaded.consents
    }
    template = loaded.recipe.serve.chat_template
    uses = [str(mod.folder) for mod in loaded.mods if mod.folder] + [template] * bool(template)
    return _Told(
        values,
        frozenset(visible_line(_relative(consent, folder)) for consent in consents),
        tuple(_relative(str(used), folder) for used in uses),
    )


def _relative(text: str, folder: Path) -> str:
    """A state that is looked at lies elsewhere than the one that was taken."""
    return text.replace(f"{folder}/", "").replace(str(folder), ".")


def _as_text(value: Any) -> str:  # noqa: ANN401 - any value
    is_text = isinstance(value, str) and "\n" in value
    return str(value) if is_text else json.dumps(value, ensure_ascii=False)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any value
    if not value or not isinstance(value, dict | list):
        yield name, value
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield from _leaves(item, f"{name}.{key}" if name else str(key))
