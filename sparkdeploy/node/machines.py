"""A node of a cluster that can be asked and told things: this machine, or one behind ssh."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from sparkdeploy import shell
from sparkdeploy.errors import NodeError
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.ssh import SshLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.node.cluster import ClusterConfig, ClusterNode
    from sparkdeploy.shell import Completed

Result = TypeVar("Result")

RUN_TIMEOUT_S = 60.0


@dataclass(slots=True)
class ClusterMachine:
    """One node. `link` is None for the machine this command runs on."""

    node: ClusterNode
    link: SshLink | None
    docker_host: str | None = None
    _docker: DockerHost | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        """Return the node's name."""
        return self.node.name

    @property
    def is_here(self) -> bool:
        """Say whether it is the machine the command runs on."""
        return self.link is None

    @property
    def docker(self) -> DockerHost:
        """Return the connection to its Docker Engine, opened at first use; NodeError names it."""
        if self._docker is None:
            address = self.link.docker_address if self.link else self.docker_host
            with named(self):
                self._docker = DockerHost(address)
        return self._docker

    def run(
        self, script: str, *, stdin: str | None = None, timeout_s: float | None = RUN_TIMEOUT_S
    ) -> Completed:
        """Run a POSIX shell script there."""
        if self.link is None:
            return shell.run(("sh", "-c", script), stdin=stdin, timeout_s=timeout_s)
        return self.link.run(script, stdin=stdin, timeout_s=timeout_s)

    def start(self, script: str) -> shell.Running:
        """Start a script there that goes on beside us."""
        if self.link is None:
            return shell.Running(("sh", "-c", script))
        return self.link.start(script)

    def close(self) -> None:
        """Close what is open."""
        if self._docker is not None:
            self._docker.__exit__()
        if self.link is not None:
            self.link.close()


@contextlib.contextmanager
def named(machine: ClusterMachine) -> Iterator[None]:
    """Put the node's name before the message of every NodeError, and speak of its engine there."""
    try:
        yield
    except NodeError as error:
        if machine.is_here or error.message.startswith(f"{machine.name}: "):
            raise
        if machine.link is not None and not machine.link.is_open:
            raise NodeError(
                f"{machine.name}: the ssh connection broke off",
                hint=f"ssh {machine.node.ssh} true; on that node: sudo systemctl status ssh",
            ) from error
        message = error.message.removeprefix(
            f"docker at {machine.link and machine.link.docker_address}"
        )
        raise NodeError(
            f"{machine.name}: {message.removeprefix(': ')}",
            hint=f"on {machine.name}: {error.hint}" if error.hint else None,
            detail=error.detail,
        ) from error


@dataclass(slots=True)
class Cluster:
    """The machines that answered, in the file's order, and why the others did not."""

    config: ClusterConfig
    machines: tuple[ClusterMachine, ...]
    unreachable: dict[str, NodeError] = field(default_factory=dict)

    @property
    def here(self) -> ClusterMachine:
        """Return the machine the command runs on."""
        return next(machine for machine in self.machines if machine.is_here)

    def machine(self, name: str) -> ClusterMachine:
        """Return a machine by name; NodeError when it did not answer or is unknown."""
        if name in self.unreachable:
            raise self.unreachable[name]
        for machine in self.machines:
            if machine.name == name:
                return machine
        known = ", ".join(node.name for node in self.config.nodes)
        raise NodeError(f"there is no node {name}", hint=f"the configured ones: {known}")

    def require_all(self) -> None:
        """Raise the first reason why a node did not answer."""
        for error in self.unreachable.values():
            raise error


@contextlib.contextmanager
def open_cluster(
    config: ClusterConfig, wanted: Sequence[ClusterNode], here: str, docker_host: str | None
) -> Iterator[Cluster]:
    """Connect to all wanted nodes at once; one that does not answer is noted, not raised."""

    def connect(node: ClusterNode) -> ClusterMachine | NodeError:
        if node.name == here:
            return ClusterMachine(node, None, docker_host)
        try:
            return ClusterMachine(node, SshLink(node.target))
        except NodeError as error:
            return error

    opened = at_once(connect, wanted)
    machines = tuple(item for item in opened if isinstance(item, ClusterMachine))
    unreachable = {
        node.name: item
        for node, item in zip(wanted, opened, strict=True)
        if isinstance(item, NodeError)
    }
    try:
        yield Cluster(config, machines, unreachable)
    finally:
        for machine in machines:
            machine.close()


def at_once(work: Callable[[Any], Result], items: Sequence[Any]) -> list[Result]:
    """Do the same for every item in threads of their own; the first failure is raised."""
    with ThreadPoolExecutor(max_workers=max(len(items), 1)) as pool:
        return list(pool.map(work, items))
