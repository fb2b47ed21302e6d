"""How often commands ask the Docker Engine; every look at a busy node takes its time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import free_port
from tests.engine.counting_proxy import Requests, counting_proxy
from tests.engine.forks import WarmCli
from tests.engine.ground import Ground, ground

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.runs("up", "plan", "status", "stop", "start", "down"),
]
OTHERS = ("one", "two", "three")
MORE_AMONG_FOUR = 2
MORE_STATUS_A_DEPLOYMENT = 3
"""An inspection, the memory and the log."""


@dataclass(frozen=True)
class Bound:
    """What a command may ask with one deployment, beside the looks while it waits."""

    requests: int
    listings: int = 1
    """A start has a second one: memory may be promised to other deployments meanwhile."""


BOUNDS = {
    "first up": Bound(14, 2),
    "up again": Bound(6),
    "plan": Bound(4),
    "status": Bound(5),
    "start": Bound(5),
    "stop": Bound(7),
    "replace": Bound(20, 2),
    "down": Bound(8),
}


@dataclass
class Counted:
    """A user whose commands go through the proxy."""

    place: Ground
    cli: WarmCli
    requests: Requests

    def up(self, text: str, *more: str) -> tuple[str, ...]:
        """Return the words of an `up` that serves this text."""
        return ("up", "standin", "--yes", "--set", f"serve.env.STAND_IN=--text {text}", *more)

    def run(self, *words: str) -> Requests:
        """Run a command to its good end; return what it asked."""
        self.requests.noted.clear()
        code, said = self.cli.run(*words)
        assert code == 0, said
        return Requests(list(self.requests.noted))


@pytest.fixture
def counted(host: DockerHost, python_base_image: str, tmp_path: Path) -> Iterator[Counted]:
    socket = tmp_path / "proxy.sock"
    with contextlib.ExitStack() as opened:
        place = opened.enter_context(
            ground(host, python_base_image, tmp_path / "user", free_port())
        )
        engine = place.engine.address.removeprefix("unix://")
        requests = opened.enter_context(counting_proxy(engine, socket))
        env = {**place.cli.env, "DOCKER_HOST": f"unix://{socket}"}
        cli = opened.enter_context(WarmCli(env, tmp_path))
        yield Counted(place, cli, requests)


def measured(counted: Counted) -> dict[str, Requests]:
    """Run each command once, in an order in which each has its work; two only prepare for it."""
    old, new = counted.up("old"), counted.up("new")
    commands = (
        ("first up", old),
        ("up again", old),
        ("plan", ("plan", *old[1:2], *old[3:])),
        ("status", ("status",)),
        ("start", ("start", "main")),
        ("down", ("down", "main", "--yes")),
        ("", old),
        ("replace", new),
        ("stop", ("stop", "main")),
        ("", ("down", "main")),
    )
    found = {name: counted.run(*words) for name, words in commands}
    return {name: found[name] for name in BOUNDS}


def above(found: dict[str, Requests], more: dict[str, int]) -> dict[str, list[str]]:
    """Return what was asked by commands that ask more than they may."""
    return {
        name: it.noted
        for name, it in found.items()
        if it.count() > BOUNDS[name].requests + more.get(name, 0)
        or it.listings() > BOUNDS[name].listings
    }


def test_commands_ask_docker_no_more_than_they_need(counted: Counted) -> None:
    assert above(measured(counted), {}) == {}
    for name in OTHERS:
        port = free_port()
        counted.run(*counted.up(name, "--name", name, "--set", f"serve.port={port}"))
    more = dict.fromkeys(BOUNDS, MORE_AMONG_FOUR)
    more["status"] = MORE_STATUS_A_DEPLOYMENT * len(OTHERS)
    assert above(measured(counted), more) == {}
