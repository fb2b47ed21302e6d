"""A recipe of others as it stands in its file: its keys, their kinds, and their lines."""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.errors import Mistakes, RecipeError
from sparkdeploy.recipe.document import Document, KeyPath, ValueOrigin, written_part
from sparkdeploy.recipe.foreign.command import PLACEHOLDER
from sparkdeploy.recipe.releases import newest
from sparkdeploy.recipe.words import closest, shown

MAPPINGS = ("defaults", "env", "metadata", "variants", "executor_config", "runtime_config")
"""Keys whose value is a mapping, also within a variant."""
LISTS = ("mods", "pre_exec", "post_exec", "post_commands", "build_args", "volumes")
TEXTS = ("model", "command", "container", "name", "description", "runtime")
OVERRIDDEN_WHOLE = (
    *("container", "mods", "pre_exec", "command", "model", "model_revision", "volumes"),
    *("min_nodes", "max_nodes", "mode", "cluster_only", "solo_only"),
)
"""Keys of a variant that take the place of the recipe's own; others are values of `defaults`."""


@functools.cache
def tables() -> dict[str, Any]:
    """Return what tables.yaml says; no folder of a user can stand in for it."""
    return dict(yaml_text.load_file(Path(__file__).parent / "tables.yaml"))


@dataclass(frozen=True, slots=True)
class SourceRecipe:
    """A recipe in a format of others, its variant chosen and its parameters replaced."""

    file: Path
    content: Mapping[str, Any]
    origins: Mapping[KeyPath, ValueOrigin]
    lines: Sequence[str]
    typed: Mapping[str, str] = field(default_factory=dict)
    """Parameters that were typed and stand in no `defaults`."""

    def origin(self, *path: str | int) -> ValueOrigin:
        """Return where a value stands, or the nearest mapping above it."""
        if written := written_part(path, self.origins):
            return self.origins[written]
        read = next((it.read for it in self.origins.values()), None)
        return ValueOrigin(str(self.file), 1, read)

    def origin_of_word(self, word: str) -> ValueOrigin:
        """Return the line of the command that has a word; the command's first where none has."""
        start = self.origin("command")
        first = start.line or 1
        numbered = enumerate(self.lines[first - 1 :], first)
        return next((replace(start, line=at) for at, line in numbered if word in line), start)

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
        defaults = {name: as_text(value) for name, value in self.mapping("defaults").items()}
        model = self.text_of("model")
        return ({"model": model} if model else {}) | defaults

    def used_parameters(self) -> frozenset[str]:
        """Return the names that the commands have a place for, those in other parameters too."""
        seen: set[str] = set()
        steps, values = map(as_text, self.listed("pre_exec")), self.parameters()
        texts = [self.text_of("command"), *steps]
        while texts:
            new = set(PLACEHOLDER.findall(texts.pop())) - seen
            seen |= new
            texts += [values.get(name, "") for name in new]
        return frozenset(seen)


def read_source_recipe(
    document: Document, file: Path, assignments: Sequence[str]
) -> tuple[SourceRecipe, list[str]]:
    """Return the recipe and the assignments that are not for its parameters."""
    text = yaml_text.read_text(file).splitlines()
    source = SourceRecipe(file, document.content, document.origins, text)
    _refuse_other_kinds(source)
    rest = []
    # A variant first: what is typed beside it changes it.
    for assignment in sorted(assignments, key=lambda item: not _is_variant(item)):
        name, equals, value = assignment.partition("=")
        name = name.strip()
        if _is_variant(assignment):
            source = _with_variant(source, value.strip())
        elif equals and _is_parameter(source, name):
            source = _with_parameter(source, name, value)
        else:
            rest.append(assignment)
    return source, rest


def as_text(value: Any) -> str:  # noqa: ANN401 - YAML content
    """Return a parameter as it stands in a command; several words for a list of them."""
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return " ".join(map(str, value))
    return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)


def flag_of_parameter(name: str) -> str:
    return tables()["parameters"].get(name) or "--" + name.replace("_", "-")


def _is_variant(assignment: str) -> bool:
    return assignment.partition("=")[0].strip() == "variant" and "=" in assignment


def _is_parameter(source: SourceRecipe, name: str) -> bool:
    is_named = name in source.mapping("defaults") or name in source.used_parameters()
    return is_named or (name != "model" and flag_of_parameter(name) in newest().spellings)


def _with_parameter(source: SourceRecipe, name: str, value: str) -> SourceRecipe:
    has_place = name in source.used_parameters() or not source.content.get("command")
    if has_place or name in source.mapping("defaults"):
        defaults = {**source.mapping("defaults"), name: value}
        source = replace(source, content={**source.content, "defaults": defaults})
    return source if has_place else replace(source, typed={**source.typed, name: value})


def _with_variant(source: SourceRecipe, name: str) -> SourceRecipe:
    variants = source.mapping("variants")
    chosen = variants.get(name)
    if not isinstance(chosen, dict):
        hint = closest(name, variants) if variants else "the recipe has none"
        raise RecipeError(f"{source.file} has no variant {shown(name)}", hint=hint)
    _refuse_other_kinds(replace(source, content=chosen))
    content = dict(source.content)
    defaults = {**source.mapping("defaults"), **(chosen.get("defaults") or {})}
    for key, value in chosen.items():
        if key in OVERRIDDEN_WHOLE:
            content[key] = value
        elif key == "env" and isinstance(value, dict):
            content["env"] = {**source.mapping("env"), **value}
        elif key not in ("defaults", "env") and key not in tables()["keys"]:
            defaults[key] = value
    origins = dict(source.origins)
    for path, origin in source.origins.items():
        if path[:2] == ("variants", name) and path[2:]:
            is_moved = path[2] in (*OVERRIDDEN_WHOLE, "env", "defaults")
            origins[path[2:] if is_moved else ("defaults", *path[2:])] = origin
    return replace(source, content={**content, "defaults": defaults}, origins=origins)


def _refuse_other_kinds(source: SourceRecipe) -> None:
    if wrong := list(_other_kinds(source)):
        count = "1 mistake" if len(wrong) == 1 else f"{len(wrong)} mistakes"
        raise RecipeError(f"recipe {source.file} has {count}", detail=Mistakes("\n".join(wrong)))


def _other_kinds(source: SourceRecipe) -> Iterator[str]:
    for kind, keys, words in ((dict, MAPPINGS, "a mapping"), (list, LISTS, "a list")):
        for key in keys:
            value = source.content.get(key)
            if value is not None and not isinstance(value, kind):
                # The format's own reader would take each letter of it for an entry.
                is_entry = kind is list and isinstance(value, str)
                fix = f"; write {key}: {shown(json.dumps([value]))}" if is_entry else ""
                yield f"{source.origin(key)}: {key}: {shown(repr(value))} is not {words}{fix}"
    for key in TEXTS:
        value = source.content.get(key)
        if isinstance(value, dict | list):
            yield f"{source.origin(key)}: {key}: {shown(repr(value))} is no text"
    for key in ("", "defaults", "env"):
        names = source.content.get(key) if key else source.content
        for name in names if isinstance(names, dict) else ():
            if not isinstance(name, str):
                yield f"{source.origin(key)}: {key}: the key {shown(repr(name))} is no text"
    if "\\u0000" in json.dumps(source.content, default=str, skipkeys=True):
        yield f"{source.file}: a value has a NUL character, which no command and no path can have"
