"""Look at nodes and models; change nothing, and name what could not be seen.

What is below the head's home is below the other node's user's home there; all else has the same
path everywhere.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sparkdeploy.checks.survey import Survey, compare, survey
from sparkdeploy.errors import NodeError
from sparkdeploy.node import ports
from sparkdeploy.node.container import ListedContainer
from sparkdeploy.node.fabric import FabricFact
from sparkdeploy.node.node import Node, Nodes, at_once, named
from sparkdeploy.node.ports import PortOwner
from sparkdeploy.node.tree import list_tree
from sparkdeploy.plan.container import (
    Deployment,
    HostFolders,
    NodePaths,
    container_name,
    container_user,
)
from sparkdeploy.plan.images import choose_base_source
from sparkdeploy.plan.launch import bound_host
from sparkdeploy.plan.models import (
    conversion_of,
    expected_model,
    locate_companion,
    locate_model,
)
from sparkdeploy.plan.observed import MissingModel, ModelFact, Observed, ObservedNode
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import Settings


def observe(
    resolved: Resolved,
    settings: Settings,
    nodes: Nodes,
    deployment: Deployment,
    *,
    found: Survey | None = None,
    asks_registry: bool = True,
) -> Observed:
    """Collect every fact that a plan needs; `unobserved` names what could not be seen."""
    recipe = resolved.recipe
    found = found or survey(nodes, settings.hub_cache)
    if nodes.here.name not in found.seen:
        raise found.failures[nodes.here.name]
    wanted = container_name(deployment.name)
    ready = [node for node in nodes if node.name in found.seen]
    seen = at_once(lambda node: _observe_node(node, found, wanted), ready)
    head = seen[0]
    asked = nodes.here.docker if head.facts.docker is not None and asks_registry else None
    observed = Observed(
        nodes=tuple(seen),
        base_source=choose_base_source(
            resolved.engine, head.facts.architecture, head.images, settings, asked
        ),
        port=_port_owner(recipe.serve.port, deployment, head.containers),
        checks=compare(nodes, found),
        gid_indexes=found.gid_indexes(nodes),
        caller_uid=os.geteuid(),
        unobserved=tuple(_unobserved(nodes.here, head)),
    )
    return with_models(observed, recipe, settings, nodes)


def with_models(observed: Observed, recipe: Recipe, settings: Settings, nodes: Nodes) -> Observed:
    """Return what was observed with the models as their files are now, on every node."""
    model = locate_model(recipe, settings).fact
    companions = tuple(locate_companion(weights, settings) for weights in recipe.companions)
    head, *others = observed.nodes
    workers = (_with_weights(item, head, (model, *companions), nodes) for item in others)
    return replace(observed, nodes=(head, *workers), model=model, companions=companions)


def with_expected_models(observed: Observed, recipe: Recipe, settings: Settings) -> Observed:
    uid, conversion = observed.caller_uid, conversion_of(recipe, settings)
    companions = (expected_model(it, None, uid, settings) for it in observed.companions)
    model = observed.model and expected_model(observed.model, conversion, uid, settings)
    return replace(observed, model=model, companions=tuple(companions))


def _observe_node(node: Node, found: Survey, wanted: str) -> ObservedNode:
    fact = found.seen[node.name]
    if fact.docker is None:
        return ObservedNode(fact)
    with named(node):
        images = {tag: image for image in node.docker.own_images() for tag in image.tags}
        containers = [item for item in node.listing if item.is_own]
        existing = next((item for item in containers if item.name == wanted), None)
        if existing is not None and existing.is_running and not existing.rank:
            return ObservedNode(fact, images, tuple(containers))
        # A list does not say how one ended, and has none that another program made.
        inspected = node.docker.find_container(wanted)
        is_own = inspected is not None and inspected.is_own
        others = tuple(item for item in containers if item is not existing)
        return ObservedNode(
            fact,
            images,
            (*others, inspected) if inspected is not None and is_own else others,
            has_foreign_container=inspected is not None and not is_own,
        )


def _with_weights(
    seen: ObservedNode,
    head: ObservedNode,
    models: tuple[ModelFact | MissingModel | None, ...],
    nodes: Nodes,
) -> ObservedNode:
    """Look at what a node has of the model's files, and count what it lacks."""
    if head.facts.fabric is None or seen.facts.fabric is None:
        return seen
    mapping, node = PathMapping(head.facts.fabric, seen.facts.fabric), nodes.node(seen.facts.name)
    compared = [compare_tree(tree, nodes.here, node) for tree in sync_trees(models, None, mapping)]
    missing = sum(item.missing_bytes for item in compared)
    # What is still to be fetched is sent from the head afterwards, all of it.
    to_come = [model.size_bytes for model in models if isinstance(model, MissingModel)]
    known = [size_bytes for size_bytes in to_come if size_bytes is not None]
    whole = missing + sum(known) if len(known) == len(to_come) else None
    shared = {item.root: item.shared for item in compared}
    return replace(seen, missing_bytes=whole, shared=shared)


def _unobserved(here: Node, head: ObservedNode) -> Iterator[str]:
    if head.facts.docker is None:
        try:
            here.docker  # noqa: B018 - the reason why it does not answer
        except NodeError as error:
            yield error.message
        yield "docker: images and containers are unknown, for it does not answer"
    if head.facts.gpu is None:
        yield "GPU: nvidia-smi is missing or finds none"


def _port_owner(
    port: int, deployment: Deployment, containers: tuple[ListedContainer, ...]
) -> PortOwner | None:
    """A deployment of ours owns its port also while it starts, and is not listening yet."""
    owner = ports.port_owner(port, containers)
    if owner.deployment is None and ports.is_port_free(
        port, bound_host(is_public=deployment.is_public)
    ):
        return None
    return owner


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
        """Return the model as it stands there; `shared` is what links of a folder there lead to."""
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
    """Return a node's weights and folders; None without a model. `folders` are the head's."""
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
    root: Path
    missing_bytes: int
    """Of what it lacks, or has in another size."""
    shared: tuple[Path, ...]
    """Files of its own shared store that paths of the tree lead to."""


def compare_tree(tree: SyncTree, head: Node, other: Node) -> RemoteTree:
    """Compare another node's tree with ours by sizes; contents are compared before sending."""
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
