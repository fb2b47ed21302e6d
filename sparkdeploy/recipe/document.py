"""YAML documents that remember on which line each value stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from sparkdeploy.errors import RecipeError

if TYPE_CHECKING:
    from pathlib import Path

# The C parser is ten times as fast; it is missing only where PyYAML was built without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

KeyPath = tuple[str | int, ...]
FIXED_KEYS = frozenset({"schema", "extends", "name"})
"""Keys that say which recipe it is; `--set` changes values, not the recipe."""

# A date such as 2020-13-45 is a ValueError (as is text that is no UTF-8), an anchor inside itself
# a RecursionError.
_NO_YAML = (yaml.YAMLError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written: a file and a line, or `--set`."""

    file: str
    line: int | None

    def __str__(self) -> str:
        """Return `file:line`."""
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping and the origin of every key in it."""

    content: dict[str, Any]
    origins: dict[KeyPath, Origin]
    duplicates: tuple[tuple[KeyPath, Origin], ...] = field(default=())


def read_document(path: Path) -> Document:
    """Read one YAML mapping; raise RecipeError when it is none."""
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise RecipeError(f"{path} is not a mapping of keys to values")
        content = loader.construct_document(node)
        origins: dict[KeyPath, Origin] = {}
        duplicates: list[tuple[KeyPath, Origin]] = []
        _collect(node, (), path, origins, duplicates)
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from error
    except _NO_YAML as error:
        raise RecipeError(f"{path} is not valid YAML", detail=str(error)) from error
    return Document(content, origins, tuple(duplicates))


def _collect(
    node: yaml.Node,
    prefix: KeyPath,
    path: Path,
    origins: dict[KeyPath, Origin],
    duplicates: list[tuple[KeyPath, Origin]],
) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key_node, value_node in node.value:
            key = (*prefix, str(key_node.value))
            origin = Origin(str(path), key_node.start_mark.line + 1)
            if key_node.value in seen:
                duplicates.append((key, origin))
            seen.add(key_node.value)
            origins[key] = origin
            _collect(value_node, key, path, origins, duplicates)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            origins[(*prefix, index)] = Origin(str(path), item.start_mark.line + 1)
            _collect(item, (*prefix, index), path, origins, duplicates)


def merge(parent: Document, child: Document) -> Document:
    """Lay the child over the parent: mappings merge, everything else replaces."""
    origins = dict(parent.origins)
    content = _merge_mapping(parent.content, child.content, (), origins, child.origins)
    return Document(content, origins, parent.duplicates + child.duplicates)


def _merge_mapping(
    parent: dict[str, Any],
    child: dict[str, Any],
    prefix: KeyPath,
    origins: dict[KeyPath, Origin],
    child_origins: dict[KeyPath, Origin],
) -> dict[str, Any]:
    merged = dict(parent)
    for key, value in child.items():
        path = (*prefix, str(key))
        if isinstance(value, dict) and isinstance(parent.get(key), dict):
            merged[key] = _merge_mapping(parent[key], value, path, origins, child_origins)
        else:
            for old in [known for known in origins if known[: len(path)] == path]:
                del origins[old]
            merged[key] = value
            origins.update(
                {known: at for known, at in child_origins.items() if known[: len(path)] == path}
            )
        origins[path] = child_origins.get(path, origins.get(path, Origin("?", None)))
    return merged


def with_setting(document: Document, assignment: str) -> Document:
    """Apply one `--set path=value`, a value in YAML; RecipeError for what cannot be set."""
    dotted, separator, text = assignment.partition("=")
    if not separator or not dotted.strip():
        raise RecipeError(
            f"--set {assignment!r} is not path=value", hint="for example --set serve.port=8001"
        )
    try:
        value = yaml.safe_load(text)
    except _NO_YAML as error:
        raise RecipeError(f"--set {assignment!r}: the value is not valid YAML") from error
    path = tuple(dotted.strip().split("."))
    if path[0] in FIXED_KEYS:
        raise RecipeError(
            f"--set cannot change {path[0]}: the file's inheritance is settled before",
            hint="write a recipe file of your own that extends the one you want",
        )
    nested: Any = value
    for key in reversed(path):
        nested = {key: nested}
    origins: dict[KeyPath, Origin] = {
        path[: end + 1]: Origin(f"--set {dotted.strip()}", None) for end in range(len(path))
    }
    merged = merge(document, Document(nested, origins))
    for end in range(1, len(path)):
        if path[:end] in document.origins:
            merged.origins[path[:end]] = document.origins[path[:end]]
    return merged
