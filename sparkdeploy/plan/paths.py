"""Where each node keeps what a deployment mounts, and which files of it count.

What is below the head's home is below the other node's user's home there; all else has the same
path everywhere.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.node.tree import list_tree
from sparkdeploy.plan.container import NodePaths, container_user
from sparkdeploy.plan.observed import ModelFact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.node.fabric import FabricFact
    from sparkdeploy.node.node import Node
    from sparkdeploy.plan.container import HostFolders
    from sparkdeploy.plan.observed import MissingModel, Observed


@dataclass(frozen=True, slots=True)
class PathMapping:
    """From the head to another node, by what each says of its user."""

    here: FabricFact
    there: FabricFact

    def path(self, path: Path) -> Path:
        try:
            return Path(self.there.home) / path.relative_to(self.here.home)
        except ValueError:
            return path

    def model(self, model: ModelFact, shared: Mapping[Path, tuple[Path, ...]]) -> ModelFact:
        """Return the model as it stands there; only root can keep its owner.

        `shared` is what links of a folder there lead to. What is sent there lies in the folder.
        """
        overlay, root = model.overlay, self.path(model.root)
        is_root = self.there.uid == 0
        return replace(
            model,
            root=root,
            shared=shared.get(root, ()),
            overlay=replace(overlay, path=self.path(overlay.path)) if overlay else None,
            owner_uid=model.owner_uid if is_root else self.there.uid,
            owner_gid=model.owner_gid if is_root else self.there.gid,
        )


def paths_on(observed: Observed, folders: HostFolders, node: str) -> NodePaths | None:
    """Return where a node has weights and folders; None while the model is missing at the head.

    `folders` are the head's.
    """
    if observed.missing or not isinstance(observed.model, ModelFact):
        return None
    if node == observed.head.facts.name:
        model, *companions = observed.present
        return NodePaths(folders, model, tuple(companions))
    mapping, seen = mapping_to(observed, node), observed.node(node)
    if mapping is None or seen is None:
        return None
    models = [mapping.model(model, seen.shared) for model in observed.present]
    uid, gid = container_user(models[0])
    template = folders.chat_template
    moved = replace(
        folders,
        cache=mapping.path(folders.cache).with_name(f"{uid}-{gid}"),
        chat_template=replace(template, path=mapping.path(template.path)) if template else None,
    )
    return NodePaths(moved, models[0], tuple(models[1:]))


def mapping_to(observed: Observed, node: str) -> PathMapping | None:
    """Return the way from the head to a node; None when the user of either is unknown."""
    seen, here = observed.node(node), observed.head.facts.fabric
    if seen is None or seen.facts.fabric is None or here is None:
        return None
    return PathMapping(here, seen.facts.fabric)


@dataclass(frozen=True, slots=True)
class SyncTree:
    """A folder here, where it belongs on another node, and which of its paths are needed."""

    here: Path
    there: Path
    paths: tuple[str, ...]


def sync_trees(
    models: tuple[ModelFact | MissingModel | None, ...], template: Path | None, mapping: PathMapping
) -> Iterator[SyncTree]:
    """Yield every folder that a container mounts; what is missing here is left out."""
    for model in models:
        if isinstance(model, ModelFact):
            yield SyncTree(model.root, mapping.path(model.root), _used(model.root, model.files))
            if model.overlay is not None:
                path = model.overlay.path
                yield SyncTree(path, mapping.path(path), _used(path, ""))
    if template is not None:
        yield SyncTree(template.parent, mapping.path(template.parent), (template.name,))


@dataclass(frozen=True, slots=True)
class RemoteTree:
    """What another node has of a tree."""

    root: Path
    missing_bytes: int
    """Of what it lacks, or has in another size."""
    shared: tuple[Path, ...]
    """Files of its own shared store that paths of the tree lead to."""


def compare_tree(tree: SyncTree, head: Node, other: Node) -> RemoteTree:
    """Compare another node's tree with ours, by sizes.

    Files of one size with other content are found when they are compared before they are sent.
    """
    ours, theirs = list_tree(head, tree.here), list_tree(other, tree.there)
    missing_bytes = sum(
        ours[path].size_bytes
        for path in tree.paths
        if path in ours and (path not in theirs or theirs[path].size_bytes != ours[path].size_bytes)
    )
    links = {
        tree.there / path: theirs[path].link
        for path in tree.paths
        if path in theirs and theirs[path].is_shared
    }
    shared = {Path(os.path.normpath(path.parent / link)) for path, link in links.items()}
    return RemoteTree(tree.there, missing_bytes, tuple(sorted(shared)))


def _used(root: Path, files: str) -> tuple[str, ...]:
    """Return the files of a folder and, where they are links within the root, what they lead to."""
    used: dict[str, None] = {}
    for path in sorted((root / files).rglob("*")):
        if path.is_dir():
            continue
        used[str(path.relative_to(root))] = None
        target = path.parent / path.readlink() if path.is_symlink() else path
        # By name alone: another link on the way must not lead elsewhere.
        inside = Path(os.path.normpath(target))
        if inside.is_relative_to(root):
            used[str(inside.relative_to(root))] = None
    return tuple(used)
