"""A container as it should be (spec) and as it is (fact), and whether it is one of ours."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from sparkdeploy import labels
from sparkdeploy.errors import UsageError
from sparkdeploy.recipe.fields import NAME_PATTERN

NAME_START = "sparkdeploy-"
TAG_START = "sparkdeploy/"
REPLACED_SUFFIX = "-replaced"
KEPT_MARK = "-kept-"
EXIT_IDLE = 88
"""How the guard ends a container that nobody has asked anything for long, and nothing else."""
ORDERLY_EXITS = frozenset({0, 143, EXIT_IDLE})
"""Told to stop, by SIGTERM or by the guard of an idle one; the guard lets no other end look so."""
LOG_DRIVER, LOG_SIZE = "json-file", {"max-size": "50m", "max-file": "3"}
_ENDING = re.compile(rf"|{REPLACED_SUFFIX}|{KEPT_MARK}[1-9][0-9]{{0,8}}")


@dataclass(frozen=True, slots=True)
class Mount:
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

    def with_fingerprint(self) -> "ContainerSpec":
        """Return the spec with its own fingerprint on it: that is how a plan knows it again."""
        return replace(self, labels={**self.labels, labels.FINGERPRINT: self.fingerprint()})

    def fingerprint(self) -> str:
        """Return the sha256 over everything but the name and the labels."""
        content = asdict(self)
        del content["labels"], content["name"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class NeighbourFact:
    """A running container that is not ours."""

    name: str
    image: str
    """As it was named when the container was made."""


@dataclass(frozen=True, slots=True)
class ListedContainer:
    """What Docker's list says of a container."""

    container_id: str
    name: str
    image_id: str
    state: str
    """created, running, paused, restarting, removing, exited or dead."""
    labels: Mapping[str, str]

    @property
    def is_running(self) -> bool:
        return self.state in {"running", "paused"}

    @property
    def is_own(self) -> bool:
        return is_ours(self.name, self.labels)

    @property
    def deployment(self) -> str:
        return self.labels.get(labels.DEPLOYMENT, "")

    @property
    def fingerprint(self) -> str:
        return self.labels.get(labels.FINGERPRINT, "")

    @property
    def user(self) -> str:
        """Who of the machine's users deployed it; empty when the label does not tell."""
        return self.labels.get(labels.USER, "")

    @property
    def port(self) -> int | None:
        return int(self.labels.get(labels.PORT) or 0) or None

    @property
    def promised_bytes(self) -> int:
        """The memory it was planned to take; 0 when the label does not tell."""
        return int(self.labels.get(labels.MEMORY) or 0)

    @property
    def startup_timeout_s(self) -> float | None:
        """How long it may take to start; None when the label does not tell."""
        text = self.labels.get(labels.STARTUP_TIMEOUT)
        return float(text) if text else None

    @property
    def rank(self) -> int:
        """0 for the head, and for one machine's."""
        return int(self.labels.get(labels.RANK) or 0)

    @property
    def launch(self) -> str:
        return self.labels.get(labels.LAUNCH, "")

    @property
    def nodes(self) -> tuple[str, ...]:
        """The cluster's nodes by rank; none for one machine's."""
        return tuple(filter(None, self.labels.get(labels.NODES, "").split(",")))


@dataclass(frozen=True, slots=True)
class ContainerFact(ListedContainer):
    """What Docker's inspection says of a container."""

    exit_code: int | None = None
    oom_killed: bool = False
    error: str = ""
    created_at: str = ""
    """Docker's own time, UTC; two of one engine compare as text."""
    started_at: str = ""
    finished_at: str = ""
    pid: int | None = None
    """Its first process, as Docker's machine numbers it; None while it does not run."""
    uid: int | None = None
    """The user that its processes have; None where Docker knows only a name."""

    @property
    def is_stopped(self) -> bool:
        """Say whether it ended because it was told to: nothing failed, and it may start again."""
        is_orderly = self.exit_code in ORDERLY_EXITS and not self.oom_killed
        return self.state == "exited" and is_orderly


@dataclass(frozen=True, slots=True)
class ImageFact:
    image_id: str
    tags: tuple[str, ...]
    labels: Mapping[str, str]
    size_bytes: int
    architecture: str = field(default="", compare=False)
    """As Docker spells it; empty in lists, which do not tell."""
    digests: tuple[str, ...] = field(default=(), compare=False)
    """NAME@sha256:..., as registries know it; none for an image that was made here."""
    volumes: tuple[str, ...] = field(default=(), compare=False)
    """What a build writes below these folders is thrown away; empty in lists, which do not tell."""
    layers: tuple[str, ...] = field(default=(), compare=False)
    """sha256 of each as it is unpacked, lowest first; empty in lists, which do not tell."""
    configuration: str = field(default="", compare=False)
    """What it runs and how, equal for equal images; empty in lists, which do not tell."""

    @property
    def stage(self) -> str:
        return self.labels.get(labels.STAGE, "")

    @property
    def engine(self) -> str:
        return self.labels.get(labels.ENGINE, "")

    @property
    def below(self) -> str:
        return self.labels.get(labels.BELOW, "")

    @property
    def fingerprint(self) -> str:
        return self.labels.get(labels.FINGERPRINT, "")

    @property
    def built_for(self) -> str:
        """The architecture that its stage was made for, in our words."""
        return self.labels.get(f"{labels.PREFIX}input.architecture", "")

    @property
    def proof(self) -> dict[str, Any]:
        """What was found in it at its build; empty where nothing is told, or a damaged label."""
        try:
            content = json.loads(self.labels.get(labels.PROOF, ""))
        except (ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


def is_ours(name: str, marks: Mapping[str, str]) -> bool:
    """Say whether a container of that name and with those labels is a deployment's."""
    # Everybody who may use a Docker Engine can write any label on anything. A label alone, or a
    # name alone, is therefore no reason to stop, rename or remove a container.
    deployment = marks.get(labels.DEPLOYMENT, "")
    if marks.get(labels.KIND) != "container" or not is_name(deployment):
        return False
    # `up` takes no such names: their containers would look like another deployment's.
    if deployment.endswith(REPLACED_SUFFIX) or KEPT_MARK in deployment:
        return False
    start = NAME_START + deployment
    return name.startswith(start) and _ENDING.fullmatch(name.removeprefix(start)) is not None


def own_tags(tags: Iterable[str]) -> tuple[str, ...]:
    return tuple(tag for tag in tags if tag.startswith(TAG_START))


def refuse_no_name(name: str) -> None:
    if not is_name(name):
        raise UsageError(
            f"{name!r} is no deployment name", hint="use lower-case letters, digits, . _ -"
        )
    if name.endswith(REPLACED_SUFFIX) or KEPT_MARK in name:
        raise UsageError(
            f"{name!r} is no deployment name: {REPLACED_SUFFIX} and {KEPT_MARK}N mark containers "
            "that are being replaced or kept",
            hint="choose another name",
        )


def is_name(text: str) -> bool:
    """Say whether a label's value may be the name of a deployment, a recipe or a node."""
    return re.fullmatch(NAME_PATTERN, text) is not None
