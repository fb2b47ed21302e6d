"""YAML documents that remember on which line each value stands."""

import copy
import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.errors import RecipeError

KeyPath = yaml_text.KeyPath
FIXED_KEYS = frozenset({"schema", "extends", "name"})
"""Keys that say which recipe it is; `--set` changes values, not the recipe."""

SECTIONS = ("model", "checkpoint", "serve", "cluster", "backends", "limits")
"""Mappings of a recipe; one in which all is commented out says nothing, and is no mistake."""
FOREIGN_SIGNS = frozenset({"recipe_version", "sparkrun_version", "container", "command", "runtime"})
"""Keys that recipes of others have, one at least, and ours never."""


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file as it was read: its owner may have put another one in its place since."""

    place: Path
    """Where it lay, links followed."""
    sha256: str


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """Where a value was written: a file and a line, or `--set`."""

    file: str
    line: int | None
    read: ReadFile | None = field(default=None, compare=False, repr=False)
    """None of what was typed."""

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


NOWHERE = ValueOrigin("?", 0)
"""Of a key that was read and not found again; unlike what was typed it has a line."""


@dataclass(frozen=True, slots=True)
class Document:
    content: dict[str, Any]
    origins: dict[KeyPath, ValueOrigin]
    duplicates: tuple[KeyPath, ...] = ()


def read_document(path: Path) -> Document:
    """Read one YAML mapping; raise RecipeError when it is none or over the reader's limits."""
    text, place = yaml_text.read_in_place(path)
    read = ReadFile(place, hashlib.sha256(text.encode()).hexdigest())
    marked = _parsed(text, str(path))
    content = copy.deepcopy(marked.content)
    return Document(
        {key: it for key, it in content.items() if it is not None or key not in SECTIONS},
        {key: ValueOrigin(str(path), line, read) for key, line in marked.lines.items()},
        tuple(key for key, _ in marked.duplicates),
    )


@functools.lru_cache(maxsize=256)
def _parsed(text: str, where: str) -> yaml_text.Marked:
    """Parse a text once: a list of recipes comes by the ones that they extend again and again."""
    return yaml_text.load_mapping(text, where)


def is_foreign(document: Document) -> bool:
    """Say whether a document is in a format of others: ours has a schema, and none of theirs."""
    return "schema" not in document.content and bool(FOREIGN_SIGNS & document.content.keys())


def is_stack(document: Document) -> bool:
    """Say whether a document is a stack file: it has several models, and a recipe has one."""
    return "models" in document.content


def written_part(path: KeyPath, origins: Mapping[KeyPath, ValueOrigin]) -> KeyPath:
    """Return the longest part of a path that stands in a file."""
    while path and path not in origins:
        path = path[:-1]
    return path


def merge(parent: Document, child: Document) -> Document:
    """Lay the child over the parent: mappings merge, everything else replaces."""
    origins = dict(parent.origins)
    content = _merge_mapping(parent.content, child.content, (), origins, child.origins)
    return Document(content, origins, parent.duplicates + child.duplicates)


def _merge_mapping(
    parent: dict[str, Any],
    child: dict[str, Any],
    prefix: KeyPath,
    origins: dict[KeyPath, ValueOrigin],
    child_origins: dict[KeyPath, ValueOrigin],
) -> dict[str, Any]:
    merged = dict(parent)
    for key, value in child.items():
        path = (*prefix, str(key))
        if isinstance(value, dict) and isinstance(parent.get(key), dict):
            merged[key] = _merge_mapping(parent[key], value, path, origins, child_origins)
        else:
            for old in [known for known in origins if known[: len(path)] == path]:
                del origins[old]
            merged[key], end = value, len(path)
            origins |= {known: at for known, at in child_origins.items() if known[:end] == path}
        origins[path] = child_origins.get(path, origins.get(path, NOWHERE))
    return merged


def is_set(dotted: str, assignment: str) -> bool:
    """Say whether one `--set path=value` changes that value; RecipeError as `with_setting`."""
    found: Any = with_setting(Document({}, {}), assignment).content
    for key in dotted.split("."):
        if not isinstance(found, dict):
            return True  # what stands above it is replaced
        if key not in found:
            return False
        found = found[key]
    return True


def with_setting(document: Document, assignment: str) -> Document:
    """Apply one `--set path=value`, a value in YAML; RecipeError for what cannot be set."""
    dotted, separator, text = assignment.partition("=")
    name = dotted.strip()
    if not separator or not name:
        raise RecipeError(
            f"--set {assignment!r} is not path=value", hint="for example --set serve.port=8001"
        )
    nested = yaml_text.load(text, f"--set {name}: the value")
    path = tuple(name.split("."))
    if len(path) > yaml_text.MAX_DEPTH:
        raise RecipeError(f"--set {name[:40]}...: more than {yaml_text.MAX_DEPTH} keys")
    if path[0] in FIXED_KEYS:
        raise RecipeError(
            f"--set cannot change {path[0]}: the file's inheritance is resolved before",
            hint="write a recipe file of your own that extends the one you want",
        )
    typed = ValueOrigin(f"--set {name}", None)
    above: list[KeyPath] = [path[:end] for end in range(1, len(path))]
    origins = {mapping: document.origins.get(mapping, typed) for mapping in above}
    origins |= dict.fromkeys(_paths_of(nested, path), typed)
    for key in reversed(path):
        nested = {key: nested}
    return merge(document, Document(nested, origins))


def _paths_of(value: Any, path: KeyPath) -> Iterator[KeyPath]:  # noqa: ANN401 - YAML content
    yield path
    items = value.items() if isinstance(value, dict) else ()
    for key, item in items:
        yield from _paths_of(item, (*path, str(key)))
