"""What a hub says of a model within seconds: its files' sizes, its config.json, its headers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sparkdeploy.checkpoint.contents import INDEX_FILE
from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.ranges import (
    HubRanges,
    index_of,
    read_config,
    read_generation,
    read_remote_headers,
)
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sparkdeploy.checkpoint.ranges import RangeSource
    from sparkdeploy.checkpoint.repo_files import RepoFacts
    from sparkdeploy.checkpoint.safetensors import TensorInfo
    from sparkdeploy.settings import Settings

ASKING_LIMIT_S = 5.0
"""Who plans does not wait longer for a hub."""


@dataclass(slots=True)
class Remote:
    """A model elsewhere, as far as it was told in time; `failure` says why there is no more."""

    repo: str
    listing: RepoFacts | None = None
    config: Mapping[str, Any] | None = None
    generation: Mapping[str, Any] | None = None
    """Its generation_config.json."""
    tensors: tuple[TensorInfo, ...] | None = None
    failure: str = ""
    hint: str | None = None
    """What helps against the failure."""


def ask_sizes(repo: str, revision: str, settings: Settings) -> Remote:
    """Ask for the files' sizes and config.json; never longer than `ASKING_LIMIT_S`."""
    told = Remote(repo)
    return _in_time(told, lambda: _describe(told, revision, settings))


def ask_configs(repo: str, revision: str, settings: Settings) -> Remote:
    """As `ask_sizes`, and for generation_config.json."""
    told = Remote(repo)

    def ask() -> None:
        told.generation = read_generation(_describe(told, revision, settings))

    return _in_time(told, ask)


def ask_headers(repo: str, revision: str, settings: Settings) -> Remote:
    """Ask for every header too, as far as they come within `ASKING_LIMIT_S`."""
    told = Remote(repo)
    return _in_time(told, lambda: _read_headers(told, revision, settings))


def ask_patiently(repo: str, revision: str, settings: Settings) -> Remote:
    """Ask for all and wait for it; raise CheckpointError when the hub refuses."""
    told = Remote(repo)
    _read_headers(told, revision, settings)
    return told


def _describe(told: Remote, revision: str, settings: Settings) -> HubRanges:
    """Fill the answer piece by piece: what came in time counts."""
    hub = replace(open_hub(settings), attempts=1)
    pin = HubLock(settings.state_dir).pin(told.repo, revision)
    told.listing = hub.describe(told.repo, pin.commit if pin is not None else revision)
    source = HubRanges(hub, told.listing)
    told.config = read_config(source)
    return source


def _read_headers(told: Remote, revision: str, settings: Settings) -> None:
    told.tensors = tuple(remote_tensors(_describe(told, revision, settings)).values())


def _in_time(told: Remote, ask: Callable[[], object]) -> Remote:
    """Let another thread ask, which nobody waits for at the end of the program either."""
    told.failure = f"the hub did not answer within {ASKING_LIMIT_S:g} s"

    def work() -> None:
        try:
            ask()
            told.failure = ""
        except CheckpointError as error:
            told.failure, told.hint = error.message, error.hint

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(ASKING_LIMIT_S)
    # A copy: the thread may go on.
    return replace(told)


def remote_tensors(source: RangeSource) -> Mapping[str, TensorInfo]:
    """Every tensor once: where two files hold one, the index says which counts.

    Raises CheckpointError for a repository without safetensors files and for damaged headers.
    """
    files = [name for name in source.files() if name.endswith(".safetensors") and "/" not in name]
    if not files:
        raise CheckpointError(f"{source.name} holds no .safetensors files.")
    indexed: Mapping[str, str] = index_of(source) if INDEX_FILE in source.files() else {}
    # Mistral publishes its weights a second time, for a program of its own.
    counted = [name for name in files if name in set(indexed.values())] or files
    found: dict[str, TensorInfo] = {}
    for file, header in read_remote_headers(source, sorted(counted)):
        for name, tensor in header.tensors.items():
            if name not in found or indexed.get(name) == file:
                found[name] = tensor
    return found
