"""One machine: its Docker Engine, its files, its commands. Here, or behind ssh."""

from __future__ import annotations

import contextlib
import shlex
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sparkdeploy import shell
from sparkdeploy.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.node.cluster import ClusterConfig, ClusterNode
    from sparkdeploy.node.container import ListedContainer
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.node.ssh import SshLink
    from sparkdeploy.shell import Completed

Result = TypeVar("Result")

RUN_TIMEOUT_S = 60.0


@dataclass(slots=True, eq=False)
class Node:
    """One machine; a context manager. `link` is None for the one this command runs on."""

    name: str
    config: ClusterNode | None = None
    """Its entry in config.yaml; None for a machine that is in none."""
    link: SshLink | None = None
    docker_host: str | None = None
    _docker: DockerHost | None = field(default=None, init=False)
    _listing: tuple[ListedContainer, ...] | None = field(default=None, init=False)
    _is_silent: bool = field(default=False, init=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._docker is not None:
            self._docker.__exit__()
            self._docker = None
        if self.link is not None:
            self.link.close()

    @property
    def is_here(self) -> bool:
        return self.link is None

    @property
    def entry(self) -> ClusterNode:
        """Return its entry in config.yaml; NodeError without one."""
        if self.config is None:
            raise NodeError(
                f"{self.name} is not in config.yaml",
                hint="`sparkdeploy cluster discover --hosts A,B` prints the section to put there",
            )
        return self.config

    @property
    def docker(self) -> DockerHost:
        """Return the connection to its Docker Engine, opened at first use; NodeError names it."""
        if self._is_silent:
            raise NodeError(f"docker on {self.name} did not answer in time")
        if self._docker is None:
            # The SDK takes 0.2 s to import.
            from sparkdeploy.node.host import DockerHost  # noqa: PLC0415

            with named(self):
                self._docker = DockerHost(
                    self.link.docker_address if self.link else self.docker_host
                )
        return self._docker

    @property
    def listing(self) -> tuple[ListedContainer, ...]:
        """Return the containers with our label, ours or not, from the one list of this command."""
        if self._listing is None:
            with named(self):
                self._listing = self.docker.labelled_containers()
        return self._listing

    def forget_listing(self) -> None:
        """Let the next question list the containers anew: this command has changed them."""
        self._listing = None

    def share_with(self, other: Node) -> None:
        """Let another object for the same machine use this one's connection and list."""
        other._docker, other._listing = self._docker, self._listing

    def read_file(self, path: str) -> str:
        """Return a text file; NodeError when it cannot be read."""
        if self.link is not None:
            done = self.run(("cat", "--", path))
            if done.exit_code != 0:
                raise NodeError(f"{self.name}: {path} cannot be read: {done.stderr.strip()}")
            return done.stdout
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise NodeError(f"{path} cannot be read: {error.strerror}") from error

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        timeout_s: float | None = RUN_TIMEOUT_S,
    ) -> Completed:
        """Run a program to its end; NodeError when it cannot start or takes too long."""
        if self.link is None:
            return shell.run(argv, stdin=stdin, timeout_s=timeout_s)
        return self.link.run(shlex.join(argv), stdin=stdin, timeout_s=timeout_s)

    def script(
        self, text: str, *, stdin: str | None = None, timeout_s: float | None = RUN_TIMEOUT_S
    ) -> Completed:
        """Run a script of the POSIX shell to its end; raises as `run` does."""
        return self.run(("sh", "-c", text), stdin=stdin, timeout_s=timeout_s)

    def start(self, script: str) -> shell.Running:
        """Start a script that goes on beside us until its input ends."""
        if self.link is None:
            return shell.Running(("sh", "-c", script))
        return self.link.start(script)


def node_behind(name: str, docker: DockerHost | None) -> Node:
    """Return this machine with a connection that is open already; None: nobody answers there."""
    node = Node(name)
    node._docker, node._is_silent = docker, docker is None
    return node


@contextlib.contextmanager
def named(node: Node) -> Iterator[None]:
    """Put the node's name before the message of a NodeError, and speak of its engine there."""
    try:
        yield
    except NodeError as error:
        if node.link is None or error.message.startswith(f"{node.name}: "):
            raise
        if not node.link.is_open:
            raise NodeError(
                f"{node.name}: the ssh connection broke off",
                hint=f"ssh {node.entry.ssh} true; on that node: sudo systemctl status ssh",
            ) from error
        message = error.message.removeprefix(f"docker at {node.link.docker_address}")
        raise NodeError(
            f"{node.name}: {message.removeprefix(': ')}",
            hint=f"on {node.name}: {error.hint}" if error.hint else None,
            detail=error.detail,
        ) from error


@dataclass(frozen=True, slots=True)
class Nodes:
    """The machines that answered, the one of this command first, and why others did not."""

    here: Node
    others: tuple[Node, ...] = ()
    unreachable: Mapping[str, NodeError] = field(default_factory=dict)
    config: ClusterConfig | None = None
    """All nodes of config.yaml; None for a machine that serves alone."""

    def __iter__(self) -> Iterator[Node]:
        return iter((self.here, *self.others))

    def alone(self) -> Nodes:
        return Nodes(self.here)

    def only(self, names: Container[str]) -> Nodes:
        return replace(
            self,
            others=tuple(node for node in self.others if node.name in names),
            unreachable={name: error for name, error in self.unreachable.items() if name in names},
        )

    def node(self, name: str) -> Node:
        """Return a node by name; NodeError when it did not answer or is unknown."""
        if name in self.unreachable:
            raise self.unreachable[name]
        for node in self:
            if node.name == name:
                return node
        known = ", ".join(self.config.names) if self.config is not None else ""
        raise NodeError(
            f"{name}: there is no such node in config.yaml",
            hint=f"the configured ones: {known}" if known else "its `cluster:` names none",
        )

    def is_left_out(self, name: str) -> bool:
        """Say whether nobody tried to reach a node of config.yaml: fewer were enough."""
        tried = {*self.unreachable, *(node.name for node in self)}
        return self.config is not None and name in self.config.names and name not in tried

    def require_all(self) -> None:
        for error in self.unreachable.values():
            raise error


def at_once(work: Callable[[Any], Result], items: Iterable[Any]) -> list[Result]:
    """Do the same for every item in threads of their own; the first failure is raised."""
    waiting = list(items)
    if len(waiting) < 2:
        return [work(item) for item in waiting]
    with ThreadPoolExecutor(max_workers=len(waiting)) as pool:
        return list(pool.map(work, waiting))


def in_background(work: Callable[[], Result]) -> Future[Result]:
    """Do it in a thread that does not keep the program from ending, as an executor's would."""
    done: Future[Result] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            # An event loop would end by those that are no errors, or take none of them.
            is_error = isinstance(error, Exception) and not isinstance(error, StopIteration)
            done.set_exception(error if is_error else RuntimeError(repr(error)))

    threading.Thread(target=run, daemon=True).start()
    return done
