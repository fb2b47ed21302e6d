"""What was seen of the nodes before anything is decided. Plain facts, no verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.contents import NOT_DESCRIBED, Described
from sparkdeploy.plan.container import container_name
from sparkdeploy.recipe.answers import TEXT, Answers
from sparkdeploy.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkdeploy.checkpoint.layers import Architecture
    from sparkdeploy.checks.report import Finding
    from sparkdeploy.image.stages import BaseSource
    from sparkdeploy.node.container import ImageFact, ListedContainer
    from sparkdeploy.node.facts import NodeFact
    from sparkdeploy.node.ports import PortOwner


@dataclass(frozen=True, slots=True)
class OverlayFact:
    path: Path
    is_complete: bool


@dataclass(frozen=True, slots=True)
class ModelFact:
    """A model that is on this machine."""

    name: str
    """The folder's name in the container under /m/hub."""
    root: Path
    """What is mounted: the repository's folder in the hub cache, or the local folder."""
    files: str
    """The folder of the files, relative to `root`; empty for the root itself."""
    revision: str | None
    size_bytes: int
    owner_uid: int
    owner_gid: int
    overlay: OverlayFact | None
    """None when the recipe mounts the untouched download."""
    shared: tuple[Path, ...] = ()
    """Files of the hub cache's shared store that links of `root` lead to, mounted one by one."""
    fp8_bytes: int = 0
    """FP8 tensors that must still be fetched for the overlay."""
    unreadable: tuple[Path, ...] = ()
    """Files the container's user could not read."""
    architectures: tuple[str, ...] = ()
    """Of its config.json; vLLM looks them up in its registry."""
    layers: Architecture | None = None
    """By its config.json; None where that says none that are known, as `unknown` tells."""
    weights_bytes: int | None = None
    """What an engine loads of its files; None for all of them."""
    embedding_bytes: int = 0
    has_weights: bool = True
    unknown: str = ""
    described: Described = NOT_DESCRIBED
    unfit: tuple[str, ...] = ()
    """Why the recipe's conversion does not apply to it."""
    answers: Answers = TEXT
    """As the recipe serves it."""
    dense_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of layers at 16 bits that the recipe makes FP8, by the last part of their names."""
    has_draft_vocabulary: bool = True
    """Whether the tokens of a draft head, if the recipe has one, were or can be counted."""


@dataclass(frozen=True, slots=True)
class MissingModel:
    """A model that is not on this machine, and the command that brings it."""

    repo: str
    fetch_command: str
    size_bytes: int | None
    """The whole of it; None when nobody has said."""
    revision: str = "main"
    here_bytes: int = 0
    """What of it is in the cache already, so that a download goes on from there."""
    weights_bytes: int | None = None
    """What an engine would load; None for all of it."""
    embedding_bytes: int = 0
    layers: Architecture | None = None
    unknown: str = ""
    """Why its size or its layers are not known."""
    described: Described = NOT_DESCRIBED
    unfit: tuple[str, ...] = ()
    answers: Answers = TEXT

    @property
    def missing_bytes(self) -> int | None:
        """None when its size is not known."""
        return None if self.size_bytes is None else self.size_bytes - self.here_bytes

    def describe(self) -> str:
        if self.size_bytes is None or self.missing_bytes is None:
            return f"{self.repo} is not here"
        if not self.here_bytes:
            return f"{self.repo} is not here, {format_bytes(self.size_bytes)}"
        to_come = f"{format_bytes(self.missing_bytes)} of {format_bytes(self.size_bytes)}"
        return f"{self.repo} is incomplete: {to_come} to download"


@dataclass(frozen=True, slots=True)
class ObservedNode:
    facts: NodeFact
    images: Mapping[str, ImageFact] = field(default_factory=dict)
    """Our images by tag."""
    containers: tuple[ListedContainer, ...] = ()
    """Ours, of all deployments; what has the deployment's name was inspected where a list does not
    say enough: where it does not run, or is a worker's."""
    missing_bytes: int | None = None
    """What it lacks of the model's files that the head has or is going to fetch; None where nobody
    looked, or the size of what is to be fetched is not known."""
    shared: Mapping[Path, tuple[Path, ...]] = field(default_factory=dict)
    """By model folder of that node: files of its own shared store that links there lead to."""
    has_foreign_container: bool = False
    """Whether a container that is none of ours has the deployment's name."""

    def container(self, deployment: str) -> ListedContainer | None:
        wanted = container_name(deployment)
        return next((item for item in self.containers if item.name == wanted), None)


@dataclass(frozen=True, slots=True)
class Observed:
    nodes: tuple[ObservedNode, ...]
    """The head first; nodes that do not answer are missing, and `checks` says so."""
    base_source: BaseSource
    model: ModelFact | MissingModel | None = None
    """At the head, where it is prepared; the other nodes get their files from there."""
    companions: tuple[ModelFact | MissingModel, ...] = ()
    """The recipe's drafter and adapters, in its order."""
    port: PortOwner | None = None
    """Who listens on the recipe's port; None when it is free."""
    checks: tuple[Finding, ...] = ()
    """What the nodes and the fabric between them answered; empty for one machine."""
    gid_indexes: Mapping[str, int] = field(default_factory=dict)
    """Where each node has RoCE v2 over IPv4 in its table, by node."""
    caller_uid: int = 0
    """Who runs this command; 0 may give files to anyone."""
    unobserved: tuple[str, ...] = ()
    """Sentences about what could not be seen, and why."""

    @property
    def head(self) -> ObservedNode:
        return self.nodes[0]

    @property
    def present(self) -> tuple[ModelFact, ...]:
        models = (self.model, *self.companions)
        return tuple(model for model in models if isinstance(model, ModelFact))

    @property
    def missing(self) -> tuple[MissingModel, ...]:
        models = (self.model, *self.companions)
        return tuple(model for model in models if isinstance(model, MissingModel))

    def node(self, name: str) -> ObservedNode | None:
        return next((node for node in self.nodes if node.facts.name == name), None)
