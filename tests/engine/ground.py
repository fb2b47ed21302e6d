"""A user with the stand-in on an engine of the test's own, and what must hold after any fault."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.deploy.deployments import Inspected, find_deployment
from sparkdeploy.node.host import DockerHost
from sparkdeploy.node.lock import lock_holder, watch_name
from tests.engine.conftest import model_at, until
from tests.engine.forks import Running, WarmCli
from tests.engine.small_engine import SmallEngine, small_engine
from tests.engine.small_python import small_python
from tests.engine.stand_in.engine import build_image, copy_image, install

NAME = "main"
DISK_MIB = 1024
LONGEST_KILL_S = 1.3
"""A replacement takes about a second here."""
NEVER = "--never-healthy"


def seeds(count: int, *, in_ci: int) -> list[Any]:
    """Return the seeds of a fault; the first few are part of every run, all of the slow one."""
    late = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(in_ci, count)]
    return [*range(in_ci), *late]


@dataclass
class Ground:
    """One engine, one user, one deployment."""

    engine: SmallEngine
    cli: WarmCli
    root: Path
    port: int

    def host(self) -> DockerHost:
        """A new connection; the engine may have been killed since the last one."""
        return DockerHost(self.engine.address)

    def start(self, text: str, *more: str, behaviour: str = "") -> Running:
        """Start `up` of a version that answers with `text`."""
        words = f"serve.env.STAND_IN=--text '{text}' {behaviour}"
        return self.cli.start("up", "standin", "--yes", "--set", words, *more)

    def up(self, text: str, *more: str, behaviour: str = "") -> tuple[int, str]:
        """Run `up` to its end."""
        running = self.start(text, *more, behaviour=behaviour)
        return running.wait(), running.said()

    def deployment(self) -> Inspected | None:
        """What there is of it."""
        with self.host() as host:
            return find_deployment(host, NAME)

    def text(self) -> str:
        """What it answers, once it does."""
        with model_at(self.port) as model:
            until(model.is_healthy)
            return model.complete("x", 1).text

    def kill_container(self, signal_name: str = "KILL") -> None:
        """`docker kill` of the deployment's current container."""
        found = self.deployment()
        assert found is not None
        with self.host() as host:
            host._api.kill(found.current.container_id, signal_name)

    def settle(self) -> None:
        """Wait until the engine has done what a killed command had asked of it."""
        before, quiet_looks = self._seen(), 0
        while quiet_looks < 3:
            time.sleep(0.05)
            now = self._seen()
            quiet_looks = quiet_looks + 1 if now == before else 0
            before = now

    def _seen(self) -> list[tuple[str, str, str]]:
        with self.host() as host:
            return [(fact.container_id, fact.name, fact.state) for fact in host.own_containers()]

    def check_whole(self, *texts: str) -> None:
        """One container runs and answers with one of these; nothing is half done or left over."""
        found = self.deployment()
        assert found is not None
        assert not found.is_half_replaced
        assert found.serving is not None
        assert found.serving.is_running
        assert [fact.name for fact in found.kept if fact.is_running] == []
        assert len(found.kept) <= 1
        assert self.text() in texts
        # A look may miss a process that has just got another parent; it never sees one too many.
        until(lambda: self.servers() >= 1)
        assert self.servers() <= 1
        with self.host() as host:
            ours = [fact.container_id for fact in host.own_containers()]
        assert sorted(ours) == sorted(fact.container_id for fact in found.containers)

    def tell_servers(self, name: str, text: str = "") -> None:
        """Put a file into the model's folder, where every server sees it."""
        (self.root / "model" / name).write_text(text)

    def guard_has_seen_health(self) -> bool:
        """Say whether the guard knows that its server has been healthy once."""
        with model_at(self.port) as model:
            return "stand_in:guard_answers 1" in model.exposition()

    def is_waited_for(self) -> bool:
        """Say whether a command waits for a start now."""
        watch = watch_name(socket.gethostname(), NAME)
        return lock_holder(self.root / "lock", watch) is not None

    def servers(self) -> int:
        """How many servers run, in a container that is known or in one that was forgotten."""
        return len(self.server_pids())

    def server_pids(self) -> list[int]:
        """Their processes."""
        return self.engine.processes(b"/usr/local/bin/vllm")


@contextlib.contextmanager
def ground(
    host: DockerHost, base: str, root: Path, port: int, *, disk_mib: int = DISK_MIB
) -> Iterator[Ground]:
    """Make an engine with the stand-in on it, and a user."""
    # It is carried to the engine and unpacked there, which takes time by its size.
    image = build_image(host, small_python(host, base))
    with small_engine(disk_mib) as engine:
        with DockerHost(engine.address) as own:
            copy_image(host, own, image)
        with ground_on(engine, root, port) as made:
            yield made


@contextlib.contextmanager
def ground_on(engine: SmallEngine, root: Path, port: int) -> Iterator[Ground]:
    """Make a user of an engine that has the stand-in's image."""
    with DockerHost(engine.address) as own:
        user = install(own, root, port)
    env = {**user.env, "DOCKER_HOST": engine.address}
    with engine.network(), WarmCli(env, root) as cli:
        yield Ground(engine, cli, root, port)
