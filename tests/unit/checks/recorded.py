"""A recorded machine: answers for the seam and for Docker, read from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sparkdeploy.checks.host import TCP_CONNECT
from sparkdeploy.errors import NodeError
from sparkdeploy.node.container import NeighbourFact
from sparkdeploy.node.reports import read_engine_info
from sparkdeploy.node.symptoms import SCRIPT
from sparkdeploy.shell import Completed
from tests.fakes.containers import FakeContainers, container

FOLDER = Path(__file__).parent / "recordings"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
FOREIGN_ID = "ab" * 32


@dataclass(frozen=True)
class Recording:
    """What one machine answers, and the verdicts that are expected of it beside `ok`."""

    files: Mapping[str, str]
    commands: Mapping[str, Any] = field(default_factory=dict)
    docker: Mapping[str, Any] | None = None
    expected: Mapping[str, str] = field(default_factory=dict)

    def read_file(self, path: str) -> str:
        """Answer like the machine."""
        if path not in self.files:
            raise NodeError(f"{path} cannot be read: no such file")
        return self.files[path].replace("{foreign_id}", FOREIGN_ID)

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        """Answer like the machine; a program that was not recorded is not installed."""
        line = " ".join(argv).replace(f"bash -c {TCP_CONNECT}", "{knock}")
        line = line.replace(f"sh -c {SCRIPT}", "{symptoms}")
        if line not in self.commands:
            raise NodeError(f"{argv[0]} is not installed")
        answer = self.commands[line]
        code, text = (0, answer) if isinstance(answer, str) else answer
        return Completed(tuple(argv), code, text, "")


class RecordedEngine(FakeContainers):
    """The Docker Engine of a recording, and our containers from its few words."""

    def __init__(self, docker: Mapping[str, Any]) -> None:
        self._docker = docker
        made = (
            container(
                it["name"], it["state"], deployment=it["deployment"], memory_bytes=str(it["memory"])
            )
            for it in docker.get("containers", ())
        )
        facts = {fact.container_id: fact for fact in made}
        super().__init__(facts, engine=read_engine_info(docker["info"]))

    def neighbours(self) -> tuple[NeighbourFact, ...]:
        """Running containers of others."""
        return tuple(NeighbourFact(**item) for item in self._docker.get("neighbours", ()))

    def always_restarted_gpu_containers(self) -> tuple[str, ...]:
        """Containers that Docker restarts for ever."""
        return tuple(self._docker.get("endless", ()))


def load(name: str) -> Recording:
    """Read a recording."""
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return Recording(
        content["files"], content["commands"], content.get("docker"), content["expected"]
    )
