"""A container as it should be (spec) and as it is (fact)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from sparkdeploy import labels

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Mount:
    """A host folder or file bound into the container."""

    source: str
    target: str
    mode: Literal["ro", "rw"] = "ro"


@dataclass(frozen=True, slots=True)
class Ulimit:
    """A resource limit, soft and hard alike; -1 means unlimited."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """Everything Docker is told about one container."""

    name: str
    image: str
    """The image's tag; it holds the fingerprint, so the tag names the content."""
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...]
    user: str
    gpus: Literal["all", "none"]
    tmpfs: Mapping[str, str]
    shm_size_bytes: int
    ulimits: tuple[Ulimit, ...] = ()
    devices: tuple[str, ...] = ()
    network: str = "host"
    cap_drop: tuple[str, ...] = ("ALL",)
    cap_add: tuple[str, ...] = ()
    security_options: tuple[str, ...] = ("no-new-privileges",)
    read_only_root: Literal[True] = True
    restart_policy: Literal["no"] = "no"
    stop_timeout_s: int = 30
    labels: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the spec as plain JSON-able values."""
        return asdict(self)

    def with_fingerprint(self) -> ContainerSpec:
        """Return the spec with its own fingerprint on it: that is how a plan knows it again."""
        return replace(self, labels={**self.labels, labels.FINGERPRINT: self.fingerprint()})

    def fingerprint(self) -> str:
        """Return the sha256 over everything but the name and the labels."""
        content = self.as_dict()
        del content["labels"], content["name"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ContainerFact:
    """A container as Docker reports it."""

    container_id: str
    name: str
    image_id: str
    state: str
    """created, running, paused, restarting, removing, exited or dead."""
    labels: Mapping[str, str]
    exit_code: int | None = None
    oom_killed: bool = False
    error: str = ""
    created_at: str = ""
    """Docker's own time, UTC; two of one engine compare as text."""
    started_at: str = ""
    finished_at: str = ""

    @property
    def is_running(self) -> bool:
        """Say whether its process lives."""
        return self.state in {"running", "paused"}

    @property
    def deployment(self) -> str:
        """Return the deployment's name."""
        return self.labels.get(labels.DEPLOYMENT, "")

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the spec it was made from."""
        return self.labels.get(labels.FINGERPRINT, "")


@dataclass(frozen=True, slots=True)
class ImageFact:
    """An image as Docker reports it."""

    image_id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    size_bytes: int
