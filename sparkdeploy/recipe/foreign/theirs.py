"""A recipe of others as it stands in its file: its keys, their kinds, and their lines."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sparkdeploy import yaml_text
from sparkdeploy.errors import Mistakes, RecipeError
from sparkdeploy.recipe.document import Document, ValueOrigin
from sparkdeploy.recipe.foreign.command import PLACEHOLDER
from sparkdeploy.recipe.foreign.tables import tables
from sparkdeploy.recipe.release import newest
from sparkdeploy.recipe.words import closest, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from sparkdeploy.recipe.document import KeyPath

MAPPINGS = ("defaults", "env", "metadata", "variants", "executor_config", "runtime_config")
"""Keys whose value is a mapping, also within a variant."""
LISTS = ("mods", "pre_exec", "post_exec", "post_commands", "build_args", "volumes")
TEXTS = ("model", "command", "container", "name", "description", "runtime")
OVERRIDDEN_WHOLE = ("container", "mods", "pre_exec", "command", "model", "model_revision")
"""Keys of a variant that take the place of the recipe's own; others are values of `defaults`."""


@dataclass(frozen=True, slots=True)
class Theirs:
    """A recipe in a format of others, its variant chosen and its parameters replaced."""

    file: Path
    content: Mapping[str, Any]
    origins: Mapping[KeyPath, ValueOrigin]
    text: Sequence[str]
    """The file's lines."""
    typed: Mapping[str, str] = field(default_factory=dict)
    """Parameters that were typed and stand in no `defaults`."""

    def origin(self, *path: str | int) -> ValueOrigin:
        """Return where a value stands, or the nearest mapping above it."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, ValueOrigin(str(self.file), 1))

    def origin_of_word(self, word: str) -> ValueOrigin:
        """Return the line of the command that has a word; the command's first where none has."""
        start = self.origin("command")
        first = (start.line or 1) - 1
        for number, line in enumerate(self.text[first:], first + 1):
            if word in line:
                return ValueOrigin(start.file, number)
        return start

    def mapping(self, key: str) -> Mapping[str, Any]:
        return self.content.get(key) or {}

    def listed(self, key: str) -> Sequence[Any]:
        return self.content.get(key) or []

    def text_of(self, key: str) -> str:
        """Return a value that is one word or sentence; empty where there is none."""
        value = self.content.get(key)
        return "" if value is None else str(value)

    def parameters(self) -> dict[str, str]:
        """Return what fills the command's places: the defaults, and the model."""
        told = {name: as_text(value) for name, value in self.mapping("defaults").items()}
        model = self.text_of("model")
        return ({"model": model} if model else {}) | told

    def used_parameters(self) -> frozenset[str]:
        """Return the names that the command has a place for, those in other parameters too."""
        seen: set[str] = set()
        texts = [self.text_of("command")]
        values = self.parameters()
        while texts:
            for name in PLACEHOLDER.findall(texts.pop()):
                if name not in seen:
                    seen.add(name)
                    texts.append(values.get(name, ""))
        return frozenset(seen)


def read(document: Document, file: Path, assignments: Sequence[str]) -> tuple[Theirs, list[str]]:
    """Return the recipe and the assignments that are not for its parameters.

    Raises RecipeError for values of another kind than the format has, all of them at once.
    """
    text = yaml_text.read_text(file).splitlines()
    theirs = Theirs(file, document.content, document.origins, text)
    _refuse_other_kinds(theirs)
    rest = []
    # A variant first: what is typed beside it changes it.
    for assignment in sorted(assignments, key=lambda item: not _is_variant(item)):
        name, equals, value = assignment.partition("=")
        name = name.strip()
        if _is_variant(assignment):
            theirs = _with_variant(theirs, value.strip())
        elif equals and _is_parameter(theirs, name):
            theirs = _with_parameter(theirs, name, value)
        else:
            rest.append(assignment)
    return theirs, rest


def as_text(value: Any) -> str:  # noqa: ANN401 - YAML content
    """Return a parameter as it stands in a command; several words for a list of them."""
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return " ".join(map(str, value))
    return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)


def flag_of_parameter(name: str) -> str:
    """Return the flag of vLLM's that a parameter is called after."""
    return tables().parameters.get(name) or "--" + name.replace("_", "-")


def _is_variant(assignment: str) -> bool:
    return assignment.partition("=")[0].strip() == "variant" and "=" in assignment


def _is_parameter(theirs: Theirs, name: str) -> bool:
    is_named = name in theirs.mapping("defaults") or name in theirs.used_parameters()
    return is_named or (name != "model" and flag_of_parameter(name) in newest().spellings)


def _with_parameter(theirs: Theirs, name: str, value: str) -> Theirs:
    has_place = name in theirs.used_parameters() or not theirs.content.get("command")
    if has_place or name in theirs.mapping("defaults"):
        defaults = {**theirs.mapping("defaults"), name: value}
        theirs = replace(theirs, content={**theirs.content, "defaults": defaults})
    if has_place:
        return theirs
    return replace(theirs, typed={**theirs.typed, name: value})


def _with_variant(theirs: Theirs, name: str) -> Theirs:
    variants = theirs.mapping("variants")
    chosen = variants.get(name)
    if not isinstance(chosen, dict):
        hint = closest(name, variants) if variants else "the recipe has none"
        raise RecipeError(f"{theirs.file} has no variant {shown(name)}", hint=hint)
    _refuse_other_kinds(replace(theirs, content=chosen))
    content = dict(theirs.content)
    defaults = {**theirs.mapping("defaults"), **(chosen.get("defaults") or {})}
    for key, value in chosen.items():
        if key in OVERRIDDEN_WHOLE:
            content[key] = value
        elif key == "env" and isinstance(value, dict):
            content["env"] = {**theirs.mapping("env"), **value}
        elif key not in ("defaults", "env") and key not in tables().keys:
            defaults[key] = value
    return replace(theirs, content={**content, "defaults": defaults})


def _refuse_other_kinds(theirs: Theirs) -> None:
    wrong = list(_other_kinds(theirs))
    if wrong:
        count = "1 mistake" if len(wrong) == 1 else f"{len(wrong)} mistakes"
        raise RecipeError(f"recipe {theirs.file} has {count}", detail=Mistakes("\n".join(wrong)))


def _other_kinds(theirs: Theirs) -> Iterator[str]:
    for kind, keys, words in ((dict, MAPPINGS, "a mapping"), (list, LISTS, "a list")):
        for key in keys:
            value = theirs.content.get(key)
            if value is not None and not isinstance(value, kind):
                is_entry = kind is list and isinstance(value, str)
                # The format's own reader would take each letter of it for an entry.
                fix = f"; write {key}: {shown(json.dumps([value]))}" if is_entry else ""
                yield f"{theirs.origin(key)}: {key}: {shown(repr(value))} is not {words}{fix}"
    for key in TEXTS:
        value = theirs.content.get(key)
        if isinstance(value, dict | list):
            yield f"{theirs.origin(key)}: {key}: {shown(repr(value))} is no text"
    for key in ("", "defaults", "env"):
        names = theirs.content.get(key) if key else theirs.content
        for name in names if isinstance(names, dict) else ():
            if not isinstance(name, str):
                yield f"{theirs.origin(key)}: {key}: the key {shown(repr(name))} is no text"
    if "\\u0000" in json.dumps(theirs.content, default=str, skipkeys=True):
        yield f"{theirs.file}: a value has a NUL character, which no command and no path can have"
