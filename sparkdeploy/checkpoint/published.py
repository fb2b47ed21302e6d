"""The config.json of a recipe's model: from its files, from shipped facts, or from the hub."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import yaml_text
from sparkdeploy.checkpoint import source as sources
from sparkdeploy.checkpoint.contents import read_config, read_generation
from sparkdeploy.checkpoint.remote import ask_configs
from sparkdeploy.errors import CheckpointError
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.recipe.schema import Weights
    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class PublishedConfig:
    """What a model's owner says of it."""

    config: Mapping[str, Any]
    origin: str
    """Where it was read, as words that follow `config.json `."""
    folder: Path | None = None
    """Where its other files are, if they are here."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Its generation_config.json, as far as it was seen."""
    files: frozenset[str] = frozenset()
    """The names of its files, as far as they are known."""


def published_config(weights: Weights, settings: Settings) -> PublishedConfig:
    """Look on this machine, in what is shipped, and for some seconds on the hub.

    Raises CheckpointError when it is nowhere.
    """
    source = (
        sources.open_folder(Path(weights.path))
        if weights.path is not None
        else sources.find_in_hub_cache(weights.source, weights.revision, settings.hub_cache)
    )
    if source is not None:
        folder = source.files_dir
        generation = read_generation(folder)
        return PublishedConfig(read_config(folder), "of the files here", folder, generation)
    shipped = shipped_entry(weights.source)
    if shipped:
        return PublishedConfig(shipped["config"], "as recipes/facts/models.yaml has it")
    told = ask_configs(weights.source, weights.revision, settings)
    if told.config is None:
        raise CheckpointError(
            f"the config.json of {weights.source} is not known: it is not here, and {told.failure}",
            hint="name a folder that has it: --set model.path=FOLDER; or try again where the hub "
            "answers",
        )
    return PublishedConfig(told.config, "from the hub", generation=told.generation or {})


def shipped_entry(repo: str) -> Mapping[str, Any]:
    """Return what recipes/facts/models.yaml has of a repository; empty for one it has not."""
    known = yaml_text.load_file(resources() / "recipes" / "facts" / "models.yaml")["models"]
    found: Mapping[str, Any] = known.get(repo, {})
    return found
