"""What a model's owner has published: its configuration, its files' sizes and its headers.

The configuration is read from the files here, from shipped facts, or from the hub, which is asked
in time.
"""

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.checkpoint import ranges
from sparkdeploy.checkpoint.contents import (
    CONFIG_FILE,
    INDEX_FILE,
    Described,
    read_config,
    read_generation,
    repeated_tensors,
)
from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock, find_source
from sparkdeploy.checkpoint.repo_files import RepoFacts
from sparkdeploy.checkpoint.safetensors import TensorInfo
from sparkdeploy.checkpoint.threads import run_within
from sparkdeploy.errors import CheckpointError
from sparkdeploy.recipe.schema import Weights
from sparkdeploy.settings import Settings, resources
from sparkdeploy.terminal.console import console

ASKING_LIMIT_S = 5.0
"""Who plans does not wait longer for a hub."""
CONFIG_LIMIT_S = 60.0
"""Nothing can be written or rehearsed without a configuration: a slow hub gets time."""
WEIGHT_KINDS = frozenset({".safetensors", ".bin", ".pt", ".pth"})


@dataclass(frozen=True, slots=True)
class PublishedConfig:
    config: Mapping[str, Any]
    origin: str
    """Where it was read, as words that follow `config.json `."""
    folder: Path | None = None
    generation: Mapping[str, Any] = field(default_factory=dict)
    files: frozenset[str] = frozenset()


def published_config(
    weights: Weights, settings: Settings, instead: str = "--set model.path=FOLDER"
) -> PublishedConfig:
    """Look on this machine, in what is shipped, and on the hub, which has a minute.

    What is shipped as others quote it counts where the hub tells nothing. `instead` is how a user
    names a folder.
    """
    if weights.path is not None:
        _refuse_other_kinds(weights.path, names_in(Path(weights.path)))
    source = find_source(weights, settings)
    if source is not None:
        return _of_folder(source.files_dir)
    shipped = shipped_entry(weights.source)
    known = PublishedConfig(shipped.get("config", {}), "as recipes/facts/models.yaml has it")
    is_quoted = "quoted" in shipped.get("weight_bytes", {})
    if shipped and not is_quoted:
        return known
    answer = ask_in_time(weights.source, weights.revision, settings, limit_s=CONFIG_LIMIT_S)
    listed = answer.listing.files if answer.listing is not None else ()
    files = frozenset(file.name for file in listed)
    _refuse_other_kinds(weights.source, files)
    if answer.config is not None:
        return PublishedConfig(answer.config, "from the hub", None, answer.generation or {}, files)
    lacking = shipped.get("lacks")
    if shipped and lacking is None:
        return known
    here = f"what is shipped of it lacks {lacking}" if shipped else "it is not here"
    raise CheckpointError(
        f"the config.json of {weights.source} is not known: {here}, and {answer.failure}",
        hint=f"{answer.hint or 'try again where the hub answers'}; or name a folder that has it: "
        f"{instead}",
    )


def _of_folder(folder: Path) -> PublishedConfig:
    try:
        config = read_config(folder)
    except CheckpointError as error:
        error.hint = error.hint or "download the model again, or name another folder"
        raise
    generation = read_generation(folder)
    return PublishedConfig(config, "of the files here", folder, generation, names_in(folder))


def names_in(folder: Path) -> frozenset[str]:
    with contextlib.suppress(OSError):
        return frozenset(os.listdir(folder))  # noqa: PTH208 - names alone
    return frozenset()


def refuse_gguf_alone(name: str, files: Collection[str]) -> None:
    """Raise CheckpointError where GGUF is the only format of the weights."""
    kinds = {Path(file).suffix for file in files}
    if ".gguf" in kinds and kinds.isdisjoint(WEIGHT_KINDS):
        raise CheckpointError(
            f"{name} has GGUF files alone, and vLLM reads none from 0.25 on",
            hint="name the model that they were made of, in safetensors",
        )


def _refuse_other_kinds(name: str, files: Collection[str]) -> None:
    """Raise CheckpointError where files without a config.json show what they are."""
    if CONFIG_FILE in files:
        return
    refuse_gguf_alone(name, files)
    kinds = yaml_text.load_file(Path(__file__).with_name("other_kinds.yaml"))
    for mark, kind in kinds.items():
        if mark in files:
            raise CheckpointError(f"{name} has no config.json: {kind['is']}", hint=kind["fix"])


def shipped_entry(repo: str) -> Mapping[str, Any]:
    """Return what recipes/facts/models.yaml has of a repository; empty for one it has not."""
    known = yaml_text.load_file(resources() / "recipes" / "facts" / "models.yaml")["models"]
    found: Mapping[str, Any] = known.get(repo, {})
    return found


@dataclass(slots=True)
class Remote:
    """A model elsewhere, as far as the hub answered; `failure` says why there is no more."""

    repo: str
    listing: RepoFacts | None = None
    config: Mapping[str, Any] | None = None
    generation: Mapping[str, Any] | None = None
    tensors: tuple[TensorInfo, ...] | None = None
    repeated: tuple[str, ...] = ()
    failure: str = ""
    hint: str | None = None

    @property
    def described(self) -> Described:
        listed = self.listing.files if self.listing is not None else ()
        names = frozenset(file.name for file in listed)
        return Described(self.config or {}, self.generation or {}, names, repeated=self.repeated)


def ask_in_time(
    repo: str,
    revision: str,
    settings: Settings,
    *,
    headers: bool = False,
    limit_s: float | None = None,
) -> Remote:
    """Ask as `ask_hub` does, for `ASKING_LIMIT_S` unless said otherwise; what came counts."""
    answer, limit_s = Remote(repo), limit_s or ASKING_LIMIT_S
    title = f"asking the hub about {repo}"
    try:
        run_within(limit_s, lambda: _fill(answer, revision, settings, headers=headers), title)
    except TimeoutError:
        answer.failure = f"the hub did not answer within {limit_s:g} s"
    except CheckpointError as error:
        answer.failure, answer.hint = error.message, error.hint
    # A copy: the thread may go on.
    return replace(answer)


def ask_hub(repo: str, revision: str, settings: Settings) -> Remote:
    """Ask for sizes, configurations and every header; CheckpointError when the hub refuses."""
    answer = Remote(repo)
    with console.step(f"headers of {repo} on the hub"):
        _fill(answer, revision, settings, headers=True)
    return answer


def _fill(answer: Remote, revision: str, settings: Settings, *, headers: bool) -> None:
    """Fill the answer piece by piece, at the pinned commit if there is one."""
    hub = replace(open_hub(settings), attempts=1)
    pin = HubLock(settings.state_dir).pin(answer.repo, revision)
    answer.listing = hub.describe(answer.repo, pin.commit if pin is not None else revision)
    source = ranges.HubRanges(hub, answer.listing)
    answer.config = ranges.read_config(source)
    answer.generation = ranges.read_generation(source)
    if headers:
        tensors, answer.repeated = remote_tensors(source)
        answer.tensors = tuple(tensors.values())


def remote_tensors(
    source: ranges.RangeSource,
) -> tuple[Mapping[str, TensorInfo], tuple[str, ...]]:
    """Return every tensor once, and which several files hold: the index says which counts."""
    files = [name for name in source.files() if name.endswith(".safetensors") and "/" not in name]
    if not files:
        raise CheckpointError(f"{source.name} holds no .safetensors files.")
    indexed: Mapping[str, str] = ranges.index_of(source) if INDEX_FILE in source.files() else {}
    # Mistral publishes its weights a second time, for a program of its own.
    counted = [name for name in files if name in set(indexed.values())] or files
    found: dict[str, TensorInfo] = {}
    headers = dict(ranges.read_remote_headers(source, sorted(counted)))
    for file, header in headers.items():
        for name, tensor in header.tensors.items():
            if name not in found or indexed.get(name) == file:
                found[name] = tensor
    return found, repeated_tensors(headers)
