"""A Docker Engine's containers without Docker: names, states, and who was stopped.

Their process is that of the tests, where the servers are that answer for them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from sparkdeploy import labels
from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import ContainerFact, ContainerSpec, ImageFact, ListedContainer
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.reports import EngineInfo
from tests.fakes.plans import DOCKER

MARKS = {labels.KIND: "container", labels.DEPLOYMENT: "main"}


def container(name: str, state: str = "running", **more: str) -> ContainerFact:
    """A container of ours; its id is its first name, `more` are labels without their prefix."""
    marks = {labels.PREFIX + key.replace("_", "-"): value for key, value in more.items()}
    return ContainerFact(
        name, name, "sha256:0", state, {**MARKS, **marks}, pid=os.getpid(), uid=os.getuid()
    )


@dataclass
class FakeContainers:
    """As much of a DockerHost as replacing needs."""

    facts: dict[str, ContainerFact] = field(default_factory=dict)
    """By id."""
    stopped: list[str] = field(default_factory=list)
    breaks_with: NodeError | None = None
    """What every question ends with, as an engine that is gone would."""
    engine: EngineInfo = DOCKER
    images: tuple[ImageFact, ...] = ()
    digest: str | None = "sha256:0"
    """What a registry says of every image."""
    looked_up: list[str] = field(default_factory=list)
    """The images that it was asked for."""

    @classmethod
    def of(cls, *facts: ContainerFact) -> Self:
        """An engine that has these."""
        return cls({fact.container_id: fact for fact in facts})

    def find_image(self, reference: str) -> ImageFact | None:
        return next((image for image in self.images if reference in image.tags), None)

    @property
    def host(self) -> DockerHost:
        """Itself, as the product takes it."""
        return cast("DockerHost", self)

    @property
    def states(self) -> dict[str, str]:
        """Each container's id and, behind a slash, its name: its state."""
        return {f"{key}/{fact.name}": fact.state for key, fact in self.facts.items()}

    def __enter__(self) -> FakeContainers:
        """Nothing is to be opened."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is to be closed."""

    def labelled_containers(self) -> tuple[ContainerFact, ...]:
        if self.breaks_with is not None:
            raise self.breaks_with
        return tuple(self.facts.values())

    def own_containers(self, deployment: str = "") -> tuple[ContainerFact, ...]:
        own = (fact for fact in self.labelled_containers() if fact.is_own)
        return tuple(fact for fact in own if deployment in {"", fact.deployment})

    def find_container(self, reference: str) -> ContainerFact | None:
        if self.breaks_with is not None:
            raise self.breaks_with
        found = self.facts.values()
        return next((item for item in found if reference in {item.container_id, item.name}), None)

    def create(self, spec: ContainerSpec) -> str:
        key = f"new-{spec.name}"
        self.facts[key] = ContainerFact(
            key, spec.name, "sha256:1", "created", spec.labels, pid=os.getpid(), uid=os.getuid()
        )
        return key

    def start(self, key: str) -> None:
        self.facts[key] = replace(self.facts[key], state="running")

    def stop(self, key: str, *, timeout_s: int = 30) -> None:
        del timeout_s
        self.stopped.append(key)
        self.facts[key] = replace(self.facts[key], state="exited", exit_code=0)

    def rename(self, key: str, name: str) -> None:
        self.facts[key] = replace(self.facts[key], name=name)

    def remove(self, container: str | ListedContainer) -> None:
        """By id or by name, as the real one; what is gone already is no mistake."""
        key = container if isinstance(container, str) else container.container_id
        for known, fact in list(self.facts.items()):
            if key in {known, fact.name}:
                del self.facts[known]

    def inspect(self, key: str) -> dict[str, object]:
        return {"Id": key}

    def logs(self, *_: object, **_options: object) -> tuple[bytes, ...]:
        return (b"",)

    def info(self) -> EngineInfo:
        return self.engine

    def own_images(self) -> tuple[ImageFact, ...]:
        return self.images

    def ended_checks(self) -> tuple[str, ...]:
        return ()

    def memory_bytes(self, _key: str) -> int:
        return 0

    def mounted_from(self, _key: str) -> tuple[str, ...]:
        return ()

    def registry_digest(self, reference: str) -> str | None:
        self.looked_up.append(reference)
        return self.digest


@dataclass
class Crashed(FakeContainers):
    """An engine with one container, which said and was given what a test says."""

    log: str = ""
    record: dict[str, Any] = field(default_factory=dict)

    def inspect(self, key: str) -> dict[str, object]:
        return {"Id": key, "Image": "sha256:1", "Config": {}, "State": {}, **self.record}

    def logs(self, *_: object, **_options: object) -> tuple[bytes, ...]:
        return (self.log.encode(),)
