"""What a hub says of a model in time: its files' sizes, its configuration, its headers."""

from __future__ import annotations

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
from sparkdeploy.checkpoint.threads import run_within
from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.checkpoint.ranges import RangeSource
    from sparkdeploy.checkpoint.repo_files import RepoFacts
    from sparkdeploy.checkpoint.safetensors import TensorInfo
    from sparkdeploy.settings import Settings

ASKING_LIMIT_S = 5.0
"""Who plans does not wait longer for a hub."""


@dataclass(slots=True)
class Remote:
    """A model elsewhere, as far as the hub answered; `failure` says why there is no more."""

    repo: str
    listing: RepoFacts | None = None
    config: Mapping[str, Any] | None = None
    generation: Mapping[str, Any] | None = None
    """Its generation_config.json."""
    tensors: tuple[TensorInfo, ...] | None = None
    failure: str = ""
    hint: str | None = None
    """What helps against the failure."""


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
    try:
        run_within(limit_s, lambda: _fill(answer, revision, settings, headers=headers))
    except TimeoutError:
        answer.failure = f"the hub did not answer within {limit_s:g} s"
    except CheckpointError as error:
        answer.failure, answer.hint = error.message, error.hint
    # A copy: the thread may go on.
    return replace(answer)


def ask_hub(repo: str, revision: str, settings: Settings) -> Remote:
    """Ask for sizes, configurations and every header; CheckpointError when the hub refuses."""
    answer = Remote(repo)
    _fill(answer, revision, settings, headers=True)
    return answer


def _fill(answer: Remote, revision: str, settings: Settings, *, headers: bool) -> None:
    """Fill the answer piece by piece, at the pinned commit if there is one."""
    hub = replace(open_hub(settings), attempts=1)
    pin = HubLock(settings.state_dir).pin(answer.repo, revision)
    answer.listing = hub.describe(answer.repo, pin.commit if pin is not None else revision)
    source = HubRanges(hub, answer.listing)
    answer.config = read_config(source)
    answer.generation = read_generation(source)
    if headers:
        answer.tensors = tuple(remote_tensors(source).values())


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
