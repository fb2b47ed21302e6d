"""The folders that a deployment mounts, here and on another node, and which files of them count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.node.tree import list_tree
from sparkdeploy.plan.observed import ModelFact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.node.node import Node
    from sparkdeploy.plan.observed import MissingModel
    from sparkdeploy.plan.place import Move


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder here, where it belongs on another node, and which of its paths are needed."""

    here: Path
    there: Path
    paths: tuple[str, ...]


def trees_of(
    models: tuple[ModelFact | MissingModel | None, ...], template: Path | None, move: Move
) -> Iterator[Tree]:
    """Yield every folder that a container mounts; what is missing here is left out."""
    for model in models:
        if isinstance(model, ModelFact):
            yield Tree(model.root, move.path(model.root), _used(model.root, model.files))
            if model.overlay is not None:
                path = model.overlay.path
                yield Tree(path, move.path(path), _used(path, ""))
    if template is not None:
        yield Tree(template.parent, move.path(template.parent), (template.name,))


def missing_bytes(tree: Tree, head: Node, other: Node) -> int:
    """Return the size of what another node lacks, or has in another size.

    Files of one size with other content are found when they are compared before they are sent.
    """
    ours, theirs = list_tree(head, tree.here), list_tree(other, tree.there)
    return sum(
        ours[path].size_bytes
        for path in tree.paths
        if path in ours and (path not in theirs or theirs[path].size_bytes != ours[path].size_bytes)
    )


def _used(root: Path, files: str) -> tuple[str, ...]:
    """Return the files of a folder and, where they are links within the root, what they lead to."""
    used: dict[str, None] = {}
    for path in sorted((root / files).rglob("*")):
        if path.is_dir():
            continue
        used[str(path.relative_to(root))] = None
        target = path.parent / path.readlink() if path.is_symlink() else path
        inside = Path(_normal(target))
        if inside.is_relative_to(root):
            used[str(inside.relative_to(root))] = None
    return tuple(used)


def _normal(path: Path) -> str:
    """Fold `..` by name alone: another link on the way must not lead elsewhere."""
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return str(Path(*parts))
