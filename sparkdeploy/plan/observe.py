"""Look at nodes and models; change nothing, and name what could not be seen."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy.checkpoint import contents
from sparkdeploy.checkpoint import overlay as overlays
from sparkdeploy.checkpoint import source as sources
from sparkdeploy.checkpoint.cache import SNAPSHOTS, repo_folder
from sparkdeploy.checkpoint.conversion import Conversion, check_untouched
from sparkdeploy.checkpoint.draft_vocabulary import draft_origin
from sparkdeploy.checkpoint.fp8_shard import fp8_bytes, fp8_origin
from sparkdeploy.checkpoint.hub_lock import HubLock, find_pinned
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.checkpoint.repo_files import has_weights, weights_bytes
from sparkdeploy.checks.survey import compare, survey
from sparkdeploy.errors import RecipeError
from sparkdeploy.estimate.limits import needs_of
from sparkdeploy.image.network import registry_reference
from sparkdeploy.image.stages import BASE_SOURCES, UPPERMOST_FIRST, stages_of
from sparkdeploy.node import ports
from sparkdeploy.node.node import at_once, named
from sparkdeploy.plan.container import container_name, container_user
from sparkdeploy.plan.missing import layers_of, missing_model, unfit_for
from sparkdeploy.plan.observed import MissingModel, ModelFact, Observed, ObservedNode, OverlayFact
from sparkdeploy.plan.place import Move, compare_tree, trees_of
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from sparkdeploy.checkpoint.source import CheckpointSource
    from sparkdeploy.checks.survey import Survey
    from sparkdeploy.image.lock import Architecture as Processor
    from sparkdeploy.image.stages import BaseSource
    from sparkdeploy.node.container import ListedContainer
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.node import Node, Nodes
    from sparkdeploy.node.ports import PortOwner
    from sparkdeploy.plan.container import Deployment
    from sparkdeploy.plan.launch import Exposure
    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.recipe.schema import Recipe, Weights
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class LocatedModel:
    """The facts a plan is made on, and the source they were read from."""

    fact: ModelFact | MissingModel
    source: CheckpointSource | None = None


def observe(
    resolved: Resolved,
    settings: Settings,
    nodes: Nodes,
    deployment: Deployment,
    *,
    found: Survey | None = None,
    asks_registry: bool = True,
) -> Observed:
    """Collect every fact that a plan needs; `unobserved` names what could not be seen.

    The nodes are asked unless `found` has what they said. Without `asks_registry` it is assumed to
    answer, because nothing is going to be built.
    """
    recipe = resolved.recipe
    found = found or survey(nodes, settings.hub_cache)
    if nodes.here.name not in found.seen:
        raise found.failures[nodes.here.name]
    wanted = container_name(deployment.name)
    ready = [node for node in nodes if node.name in found.seen]
    seen = at_once(lambda node: _observe_node(node, found, wanted), ready)
    head = seen[0]
    observed = Observed(
        nodes=tuple(seen),
        base_source=choose_base_source(
            resolved.engine,
            head.facts.architecture,
            head.images,
            settings,
            nodes.here.docker if head.facts.docker is not None and asks_registry else None,
        ),
        port=_port_owner(recipe.serve.port, deployment.exposure, head.containers),
        checks=compare(nodes, found),
        gid_indexes=found.gid_indexes(nodes),
        caller_uid=os.geteuid(),
        unobserved=tuple(_unobserved(head)),
    )
    return with_models(observed, recipe, settings, nodes)


def with_models(observed: Observed, recipe: Recipe, settings: Settings, nodes: Nodes) -> Observed:
    """Return what was observed with the models as their files are now, on every node."""
    model = locate_model(recipe, settings).fact
    companions = tuple(_companion(weights, settings) for weights in recipe.companions)
    head, *others = observed.nodes
    workers = (_with_weights(item, head, (model, *companions), nodes) for item in others)
    return replace(observed, nodes=(head, *workers), model=model, companions=companions)


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
            has_stranger=inspected is not None and not is_own,
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
    move, node = Move(head.facts.fabric, seen.facts.fabric), nodes.node(seen.facts.name)
    compared = [compare_tree(tree, nodes.here, node) for tree in trees_of(models, None, move)]
    missing = sum(item.missing_bytes for item in compared)
    # What is still to be fetched is sent from the head afterwards, all of it.
    to_come = [model.size_bytes for model in models if isinstance(model, MissingModel)]
    known = [size_bytes for size_bytes in to_come if size_bytes is not None]
    whole = missing + sum(known) if len(known) == len(to_come) else None
    shared = {item.root: item.shared for item in compared}
    return replace(seen, missing_bytes=whole, shared=shared)


def _unobserved(head: ObservedNode) -> Iterator[str]:
    if head.facts.docker is None:
        yield "docker: images and containers are unknown, for it does not answer"
    if head.facts.gpu is None:
        yield "GPU: nvidia-smi is missing or finds none"


def conversion_of(recipe: Recipe, settings: Settings) -> Conversion:
    """Return a recipe's conversion of a model that nobody has looked at yet."""
    checkpoint = recipe.checkpoint
    fp8, draft = checkpoint.fp8_dense, checkpoint.draft_lm_head
    return Conversion(
        fp8_mode="finished" if fp8.is_finished else fp8.mode,
        fp8_layers=fp8.layers,
        lm_head=checkpoint.lm_head,
        mtp=checkpoint.mtp or "off",
        mtp_weights=checkpoint.mtp_weights,
        shared_experts=checkpoint.shared_experts,
        fp8_origin=fp8_origin(checkpoint, settings),
        draft_rows=draft.rows if draft is not None else 0,
    )


def conversion_for(source: CheckpointSource, recipe: Recipe, settings: Settings) -> Conversion:
    """Return a recipe's conversion of the model that is here, with whose tokenizer drafts count."""
    origin = draft_origin(recipe, settings, source.files_dir)
    return replace(conversion_of(recipe, settings), draft_origin=origin)


def locate_model(recipe: Recipe, settings: Settings) -> LocatedModel:
    """Find the recipe's model in its folder or the hub's cache, with its overlay."""
    with sources.readable():
        source = _find_source(recipe, settings)
        if source is None:
            wanted = conversion_of(recipe, settings)
            missing = missing_model(recipe.model.source, recipe.model.revision, settings, wanted)
            return LocatedModel(missing)
        conversion = conversion_for(source, recipe, settings)
        if conversion.is_none:
            check_untouched(source)
        fact = _model_fact(source, None if conversion.is_none else conversion, settings)
        to_fetch = fp8_bytes(recipe.checkpoint, source, settings)
        is_counted = bool(conversion.draft_origin) or not conversion.draft_rows
        config = contents.read_config(source.files_dir)
        known = replace(
            fact,
            fp8_bytes=to_fetch,
            has_draft_vocabulary=is_counted,
            unfit=unfit_for(config, conversion),
        )
        return LocatedModel(known, source)


def _find_source(recipe: Recipe, settings: Settings) -> CheckpointSource | None:
    model = recipe.model
    if model.path is not None:
        return sources.open_folder(_models_folder(model.path))
    return _find_pinned(model.source, model.revision, settings)


def _models_folder(named: str) -> Path:
    """Return the folder that a recipe names; RecipeError where nothing is there."""
    path = Path(os.path.expanduser(named))  # noqa: PTH111 - a home of nobody is no bug
    if not os.path.lexists(path):
        raise RecipeError(f"model.path: {named} does not exist", hint="name the folder of a model")
    return path


def _find_pinned(repo: str, revision: str, settings: Settings) -> CheckpointSource | None:
    return find_pinned(repo, revision, settings.hub_cache, HubLock(settings.state_dir))


def _companion(weights: Weights, settings: Settings) -> ModelFact | MissingModel:
    with sources.readable():
        if weights.path is not None:
            source = sources.open_folder(Path(weights.path))
            return _model_fact(source, None, settings)
        found = _find_pinned(weights.source, weights.revision, settings)
        if found is None:
            return missing_model(weights.source, weights.revision, settings)
        return _model_fact(found, None, settings)


def _model_fact(
    source: CheckpointSource, conversion: Conversion | None, settings: Settings
) -> ModelFact:
    status = source.root.stat()
    overlay = None if conversion is None else _overlay_fact(source, conversion, settings)
    # An adapter has none.
    has_config = (source.files_dir / contents.CONFIG_FILE).is_file()
    config = contents.read_config(source.files_dir) if has_config else {}
    sizes = {str(name): (source.files_dir / name).stat().st_size for name in source.files()}
    layers, unknown = layers_of(config) if has_config else (None, "")
    fact = ModelFact(
        name=source.mount_name,
        root=source.root,
        shared=source.shared,
        files=str(source.files_dir.relative_to(source.root)).removeprefix("."),
        revision=source.revision,
        size_bytes=sum(sizes.values()),
        owner_uid=status.st_uid,
        owner_gid=status.st_gid,
        overlay=overlay,
        architectures=_architectures(config),
        weights_bytes=weights_bytes(sizes),
        has_weights=has_weights(sizes),
        layers=layers,
        unknown=unknown,
        demands=needs_of(config),
    )
    return replace(fact, unreadable=sources.unreadable_by(source, *container_user(fact)))


def _architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("architectures")
    return tuple(map(str, named)) if isinstance(named, list) else ()


def _overlay_fact(
    source: CheckpointSource, conversion: Conversion, settings: Settings
) -> OverlayFact:
    fingerprint = overlays.overlay_fingerprint(source, conversion)
    path = overlay_path(source.name, fingerprint[:12], settings)
    manifest = read_manifest(path)
    is_complete = manifest is not None and manifest.fingerprint == fingerprint
    return OverlayFact(path, is_complete)


def overlay_path(model: str, fingerprint: str, settings: Settings) -> Path:
    short_name = model.rpartition("/")[2].lower()
    return settings.data_dir / "m" / "ck" / f"{short_name}-{fingerprint}"


def choose_base_source(
    engine: Engine,
    architecture: Processor,
    tags: Container[str],
    settings: Settings,
    asked: DockerHost | None,
) -> BaseSource:
    """Keep to the base of the images with these tags; otherwise the registry's, if it answers.

    `asked` is the Docker Engine that asks it; without one it is assumed to answer.
    """
    known = source_already_here(engine, architecture, resources(), tags)
    if known is not None:
        return known
    if engine.base is None or asked is None:
        return "registry"
    reference = registry_reference(engine.base.image, settings.hosts.container_registry)
    return "registry" if asked.registry_digest(reference) else "debian"


def source_already_here(
    engine: Engine, architecture: Processor, resources: Path, tags: Container[str]
) -> BaseSource | None:
    """Return the base source that the images with these tags were made with; None without any.

    The plugin's image decides before the engine's, and that before the base's. An engine without
    a base, or whose base has no Debian counterpart, knows the registry alone. Raises BuildError
    like `stages_of`.
    """
    if engine.base is None or engine.base.debian is None:
        return "registry"
    made = [
        stage
        for source in BASE_SOURCES
        for stage in stages_of(
            engine, base_source=source, architecture=architecture, resources=resources
        )
        if stage.tag in tags
    ]
    uppermost = min(made, key=lambda stage: UPPERMOST_FIRST[stage.name], default=None)
    return uppermost.base_source if uppermost is not None else None


def _port_owner(
    port: int, exposure: Exposure, containers: tuple[ListedContainer, ...]
) -> PortOwner | None:
    """A deployment of ours owns its port also while it starts, and is not listening yet."""
    owner = ports.port_owner(port, containers)
    if owner.deployment is None and ports.is_port_free(port, exposure.host):
        return None
    return owner


def with_expected_models(observed: Observed, recipe: Recipe, settings: Settings) -> Observed:
    """Return what was seen as if nothing were to be downloaded.

    What is not known before a download stands in angle brackets: the commit of a branch that was
    never resolved, and the hash of its files, in which an overlay's name ends.
    """
    model = observed.model
    if isinstance(model, MissingModel):
        is_treated = not conversion_of(recipe, settings).is_none
        overlay = overlay_path(model.repo, "<fingerprint>", settings) if is_treated else None
        model = _expected(model, overlay, observed.caller_uid, settings)
    companions = tuple(
        _expected(item, None, observed.caller_uid, settings)
        if isinstance(item, MissingModel)
        else item
        for item in observed.companions
    )
    return replace(observed, model=model, companions=companions)


def _expected(
    missing: MissingModel, overlay: Path | None, uid: int, settings: Settings
) -> ModelFact:
    root = repo_folder(settings.hub_cache, missing.repo)
    pin = HubLock(settings.state_dir).pin(missing.repo, missing.revision)
    commit = pin.commit if pin is not None else f"<commit of {missing.revision}>"
    return ModelFact(
        name=root.name,
        root=root,
        files=f"{SNAPSHOTS}/{commit}",
        revision=commit,
        size_bytes=missing.size_bytes or 0,
        owner_uid=uid,
        owner_gid=os.getegid(),
        overlay=OverlayFact(overlay, is_complete=False) if overlay is not None else None,
    )
