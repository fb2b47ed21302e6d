"""A container as it should be (spec) and as it is (fact)."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from sparkdeploy import labels
from sparkdeploy.node.ownership import is_name

if TYPE_CHECKING:
    from collections.abc import Mapping


MAX_PORT = 65535
MAX_STARTUP_S = 1e9
_USER = re.compile(r"[\w.@-][\w.@ -]{0,63}", re.ASCII)
_DIGITS = re.compile("[0-9]{1,18}")


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
    """What Docker gets for one container."""

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
        return self.state in {"running", "paused"}

    @property
    def deployment(self) -> str:
        """Return the deployment's name."""
        return self.labels.get(labels.DEPLOYMENT, "")

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the spec it was made from."""
        return self.labels.get(labels.FINGERPRINT, "")

    @property
    def user(self) -> str:
        """Return who of the machine's users deployed it; empty when the label does not tell."""
        said = self.labels.get(labels.USER, "")
        return said if _USER.fullmatch(said) else ""

    @property
    def port(self) -> int | None:
        """Return the port it serves on; None when the label is none, or no port."""
        number = _whole(self.labels.get(labels.PORT, ""))
        return number if number is not None and 0 < number <= MAX_PORT else None

    @property
    def promised_bytes(self) -> int:
        """Return the memory it was planned to take; 0 when the label does not tell."""
        return _whole(self.labels.get(labels.MEMORY, "")) or 0

    @property
    def keep_count(self) -> int:
        """Return how many of its predecessors stay."""
        return _whole(self.labels.get(labels.KEEP, "")) or 0

    @property
    def startup_timeout_s(self) -> float | None:
        """Return how long it may take to start; None when the label is none, or no duration."""
        try:
            duration_s = float(self.labels.get(labels.STARTUP_TIMEOUT, ""))
        except ValueError:
            return None
        return duration_s if 0 <= duration_s <= MAX_STARTUP_S else None

    @property
    def rank(self) -> int:
        """Return its rank among several nodes; 0 for the head, and for one machine's."""
        return _whole(self.labels.get(labels.RANK, "")) or 0

    @property
    def launch(self) -> str:
        """Return what all containers of one `up` over several nodes have in common."""
        return self.labels.get(labels.LAUNCH, "")

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the cluster's nodes by rank; none for one machine's, or when one is no name."""
        names = tuple(filter(None, self.labels.get(labels.NODES, "").split(",")))
        return names if all(map(is_name, names)) else ()


def _whole(text: str) -> int | None:
    """Read a number that somebody else may have written; int() takes far more than digits."""
    return int(text) if _DIGITS.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class ImageFact:
    """An image as Docker reports it."""

    image_id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    size_bytes: int
