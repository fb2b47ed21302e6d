"""Replaces a deployment like the CLI does, and is killed before its Nth change to Docker.

python -m tests.engine.stand_in.dying_cli SPEC.pickle CRASHES_DIR N
"""

import os
import pickle
import signal
import sys
from pathlib import Path

from sparkdeploy.node.container import ContainerSpec, ListedContainer
from sparkdeploy.node.host import DockerHost
from sparkdeploy.server.health import Readiness, wait_until_answering
from tests.engine.conftest import DEADLINE_S, model_at, port_of
from tests.engine.stand_in.replacing import put_in_place


class MortalHost(DockerHost):
    """A connection whose process is killed (SIGKILL) before a given change."""

    def __init__(self, docker_host: str | None, killed_before: int) -> None:
        """Connect; changes are counted from 1."""
        super().__init__(docker_host)
        self._changes_left = killed_before

    def rename(self, container_id: str, name: str) -> None:
        """Count, then rename."""
        self._count()
        super().rename(container_id, name)

    def stop(self, container_id: str, *, timeout_s: int = 30) -> None:
        """Count, then stop."""
        self._count()
        super().stop(container_id, timeout_s=timeout_s)

    def create(self, spec: ContainerSpec) -> str:
        """Count, then create."""
        self._count()
        return super().create(spec)

    def start(self, container_id: str) -> None:
        """Count, then start."""
        self._count()
        super().start(container_id)

    def remove(self, container: str | ListedContainer) -> None:
        """Count, then remove."""
        self._count()
        super().remove(container)

    def _count(self) -> None:
        self._changes_left -= 1
        if self._changes_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Replace, and die on the way."""
    spec_file, crashes_dir, killed_before = sys.argv[1:]
    spec: ContainerSpec = pickle.loads(Path(spec_file).read_bytes())
    with MortalHost(os.environ.get("DOCKER_HOST"), int(killed_before)) as host:

        def wait(container_id: str) -> Readiness:
            with model_at(port_of(spec)) as model:
                return wait_until_answering(host, container_id, model, deadline_s=DEADLINE_S)

        put_in_place(host, spec, crashes_dir=Path(crashes_dir), wait=wait)


if __name__ == "__main__":
    main()
