"""What a plan knows of a model and of its companions, on this machine or not."""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkdeploy.checkpoint import contents
from sparkdeploy.checkpoint import overlay as overlays
from sparkdeploy.checkpoint import source as sources
from sparkdeploy.checkpoint.cache import SNAPSHOTS, repo_folder
from sparkdeploy.checkpoint.conversion import Conversion, check_untouched, unfit
from sparkdeploy.checkpoint.dense_layers import dense_layers
from sparkdeploy.checkpoint.draft_vocabulary import draft_origin
from sparkdeploy.checkpoint.fp8_shard import fp8_bytes, fp8_origin
from sparkdeploy.checkpoint.hub_lock import HubLock, find_source
from sparkdeploy.checkpoint.layers import Architecture
from sparkdeploy.checkpoint.manifest import read_manifest
from sparkdeploy.checkpoint.published import ask_in_time, names_in, shipped_entry
from sparkdeploy.checkpoint.pull import download_bytes
from sparkdeploy.checkpoint.repo_files import has_weights, weights_bytes
from sparkdeploy.checkpoint.safetensors import refuse_pointer
from sparkdeploy.checkpoint.source import CheckpointSource
from sparkdeploy.errors import CheckpointError, RecipeError
from sparkdeploy.estimate.model import embedding_bytes, known_layers
from sparkdeploy.estimate.model_findings import UNIQUE_NAMES
from sparkdeploy.plan.container import container_user
from sparkdeploy.plan.observed import MissingModel, ModelFact, OverlayFact
from sparkdeploy.recipe.answers import TEXT, planned_answers
from sparkdeploy.recipe.schema import Recipe, Weights
from sparkdeploy.recipe.serve import Serve
from sparkdeploy.recipe.weights import Drafter
from sparkdeploy.settings import Settings
from sparkdeploy.stored_json import open_regular

POINTER_BYTES = 1024
"""No file of weights that a model has is so small, and every pointer of Git LFS is."""


@dataclass(frozen=True, slots=True)
class LocatedModel:
    fact: ModelFact | MissingModel
    source: CheckpointSource | None = None


def conversion_of(recipe: Recipe, settings: Settings) -> Conversion:
    checkpoint = recipe.checkpoint
    fp8, draft = checkpoint.fp8_dense, checkpoint.draft_lm_head
    drafting = recipe.serve.speculative
    return Conversion(
        fp8_mode="finished" if fp8.is_finished else fp8.mode,
        fp8_layers="all" if fp8.takes_all else "shared_expert",
        fp8_kernel="vllm" if fp8.mode == "off" else fp8.kernel,
        lm_head=checkpoint.lm_head,
        mtp=checkpoint.mtp or "off",
        mtp_weights=checkpoint.mtp_weights,
        shared_experts=checkpoint.shared_experts,
        fp8_origin=fp8_origin(checkpoint, settings),
        draft_rows=draft.rows if draft is not None else 0,
        has_drafter=drafting is not None and not drafting.is_mtp,
        routing=checkpoint.routing if checkpoint.converts else "vllm",
    )


def conversion_for(source: CheckpointSource, recipe: Recipe, settings: Settings) -> Conversion:
    """Return a recipe's conversion of the model that is here, with whose tokenizer drafts count."""
    origin = draft_origin(recipe, settings, source.files_dir)
    return replace(conversion_of(recipe, settings), draft_origin=origin)


def locate_model(recipe: Recipe, settings: Settings) -> LocatedModel:
    """Find the recipe's model in its folder or the hub's cache, with its overlay."""
    model = recipe.model
    with sources.readable():
        source = _find_source(model, settings)
        if source is None:
            wanted = conversion_of(recipe, settings)
            missing = missing_model(model.source, model.revision, settings, wanted, recipe.serve)
            return LocatedModel(missing)
        conversion = conversion_for(source, recipe, settings)
        fact = _model_fact(source, None if conversion.is_none else conversion, settings)
        folder = source.files_dir
        config = fact.described.config or contents.read_config(folder)
        if conversion.is_none:
            check_untouched(source, config)
        if (recipe.serve.load_format or "").lower() in UNIQUE_NAMES:
            fact = with_repeated(fact, source)
        has_template = contents.may_chat(folder, config)
        known = replace(
            fact,
            weights_bytes=loaded_bytes(shipped_entry(model.source), fact.weights_bytes),
            answers=planned_answers(
                recipe.serve, config, names_in(folder), has_template=has_template
            ),
            fp8_bytes=fp8_bytes(recipe.checkpoint, config, settings),
            dense_bytes=dense_bytes(folder, config) if conversion.fp8_layers == "all" else {},
            has_draft_vocabulary=bool(conversion.draft_origin) or not conversion.draft_rows,
            unfit=unfit_for(config, conversion),
        )
        return LocatedModel(known, source)


def with_repeated(fact: ModelFact, source: CheckpointSource) -> ModelFact:
    """Look for tensors that several files hold, which takes every header."""
    if not any(it.endswith(".safetensors") for it in fact.described.names):
        return fact
    headers, indexed = contents.read_headers(source.files_dir), fact.described.indexed
    repeated = contents.repeated_tensors(headers, indexed)
    return replace(fact, described=replace(fact.described, repeated=repeated))


def dense_bytes(folder: Path, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of the layers at 16 bits that can become FP8, by their names' last parts."""
    tensors = (located.info for located in contents.read_tensors(folder).values())
    found: Counter[str] = Counter()
    for name, info in dense_layers(config, tensors).items():
        found[name.rpartition(".")[2]] += info.size_bytes
    return dict(found)


def locate_companion(weights: Weights, settings: Settings) -> ModelFact | MissingModel:
    with sources.readable():
        source = _find_source(weights, settings)
        folder = weights.subfolder if isinstance(weights, Drafter) else None
        if source is not None and folder is not None:
            source = sources.within(source, folder)
            if source is None and weights.path is not None:
                raise RecipeError(
                    f"the folder {weights.path} has no model in {folder}",
                    hint="name another folder of it: --set serve.speculative.subfolder=FOLDER",
                )
        if source is not None:
            return _model_fact(source, None, settings)
        missing = missing_model(weights.source, weights.revision, settings)
        if folder is None:
            return missing
        # What is known of the repository says nothing of a folder in it.
        unknown = f"its folder {folder} is not here"
        fetch, of = missing.fetch_command, missing.revision
        return MissingModel(missing.repo, fetch, None, of, unknown=unknown)


def _find_source(weights: Weights, settings: Settings) -> CheckpointSource | None:
    """Open the folder that a recipe names, or find a repository; RecipeError for no folder."""
    named = weights.path
    # A home of nobody is no bug, as which pathlib takes it.
    if named is not None and not os.path.lexists(os.path.expanduser(named)):  # noqa: PTH111
        raise RecipeError(f"the folder {named} does not exist", hint="name the folder of a model")
    return find_source(weights, settings)


def _model_fact(
    source: CheckpointSource, conversion: Conversion | None, settings: Settings
) -> ModelFact:
    status = source.root.stat()
    sizes = {str(name): (source.files_dir / name).stat().st_size for name in source.files()}
    for name in (it for it, size in sizes.items() if size < POINTER_BYTES and has_weights((it,))):
        with open_regular(source.files_dir / name) as file:
            refuse_pointer(str(source.files_dir / name), file.read(8))
    described = contents.describe(source.files_dir, sizes)
    config = described.config
    layers, unknown = layers_of(config) if config else (None, "")
    named = config.get("architectures")
    fact = ModelFact(
        name=source.mount_name,
        root=source.root,
        shared=source.shared,
        files=str(source.files_dir.relative_to(source.root)).removeprefix("."),
        revision=source.revision,
        size_bytes=sum(sizes.values()),
        owner_uid=status.st_uid,
        owner_gid=status.st_gid,
        overlay=None if conversion is None else _overlay_fact(source, conversion, settings),
        architectures=tuple(map(str, named)) if isinstance(named, list) else (),
        weights_bytes=weights_bytes(sizes),
        embedding_bytes=embedding_bytes(config),
        has_weights=has_weights(sizes),
        layers=layers,
        unknown=unknown,
        described=described,
    )
    return replace(fact, unreadable=sources.unreadable_by(source, *container_user(fact)))


def _overlay_fact(
    source: CheckpointSource, conversion: Conversion, settings: Settings
) -> OverlayFact:
    fingerprint = overlays.overlay_fingerprint(source, conversion)
    path = overlay_path(source.name, fingerprint[:12], settings)
    manifest = read_manifest(path)
    return OverlayFact(path, manifest is not None and manifest.fingerprint == fingerprint)


def overlay_path(model: str, fingerprint: str, settings: Settings) -> Path:
    short_name = model.rpartition("/")[2].lower()
    return settings.data_dir / "m" / "ck" / f"{short_name}-{fingerprint}"


def missing_model(
    repo: str,
    revision: str,
    settings: Settings,
    conversion: Conversion | None = None,
    serve: Serve | None = None,
) -> MissingModel:
    """Ask the pin, then shipped facts, then the hub, which has some seconds."""
    pin, shipped = HubLock(settings.state_dir).pin(repo, revision), shipped_entry(repo)
    config, unknown, here_bytes = shipped.get("config"), "", 0
    size_bytes = files_bytes = shipped.get("size_bytes")
    described = contents.Described(config or {})
    files: frozenset[str] = frozenset()
    if pin is not None and pin.files:
        found = pin.facts(repo, revision)
        size_bytes, files_bytes = found.size_bytes, found.weights_bytes
        here_bytes = found.size_bytes - download_bytes(settings.hub_cache, found)
    elif not shipped:
        answer = ask_in_time(repo, revision, settings)
        config, unknown, described = answer.config, answer.failure, answer.described
        if answer.listing is not None:
            files = frozenset(file.name for file in answer.listing.files)
            size_bytes, files_bytes = answer.listing.size_bytes, answer.listing.weights_bytes
    layers, unknown = layers_of(config) if config is not None else (None, unknown)
    return MissingModel(
        repo=repo,
        fetch_command=sources.fetch_command(repo, revision),
        size_bytes=size_bytes,
        revision=revision,
        here_bytes=here_bytes,
        weights_bytes=loaded_bytes(shipped, files_bytes),
        embedding_bytes=embedding_bytes(config or {}),
        layers=layers,
        unknown=unknown,
        described=described,
        unfit=unfit_for(config, conversion) if config is not None and conversion else (),
        answers=planned_answers(serve, config or {}, files) if serve is not None else TEXT,
    )


def loaded_bytes(shipped: Mapping[str, Any], files_bytes: int | None) -> int | None:
    """Return what of the files is loaded: less where shipped facts say that some of it is not."""
    known = shipped.get("weight_bytes", {}).get("values", {}).values()
    return min(files_bytes, sum(known)) if known and files_bytes is not None else files_bytes


def unfit_for(config: Mapping[str, Any], conversion: Conversion) -> tuple[str, ...]:
    try:
        return tuple(unfit(config, conversion))
    except CheckpointError as error:
        return () if conversion.is_none else (error.message,)


def layers_of(config: Mapping[str, Any]) -> tuple[Architecture | None, str]:
    """Return the layers, or None and what is not known: wrong numbers are for the download."""
    try:
        return known_layers(config)
    except CheckpointError as error:
        return None, error.message


def expected_model(
    model: ModelFact | MissingModel,
    conversion: Conversion | None,
    caller_uid: int,
    settings: Settings,
) -> ModelFact:
    """Return a model as if it were downloaded; what is not known before stands in <...>."""
    if not isinstance(model, MissingModel):
        return model
    root = repo_folder(settings.hub_cache, model.repo)
    pin = HubLock(settings.state_dir).pin(model.repo, model.revision)
    commit = pin.commit if pin is not None else f"<commit of {model.revision}>"
    is_converted = conversion is not None and not conversion.is_none
    path = overlay_path(model.repo, "<fingerprint>", settings)
    return ModelFact(
        name=root.name,
        root=root,
        files=f"{SNAPSHOTS}/{commit}",
        revision=commit,
        size_bytes=model.size_bytes or 0,
        owner_uid=caller_uid,
        owner_gid=os.getegid(),
        overlay=OverlayFact(path, is_complete=False) if is_converted else None,
        answers=model.answers,
    )
