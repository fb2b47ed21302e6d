"""`export systemd --socket` under a real systemd: asleep, woken, idle, dead and woken again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from sparkdeploy.node.host import DockerHost
from tests.engine.booted_machine import BootedMachine
from tests.engine.conftest import until
from tests.engine.stand_in.booted import user_of_a_booted_machine
from tests.engine.stand_in.engine import StandInEngine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.in_order,
    pytest.mark.timeout(900),
    pytest.mark.runs("export", "up", "stop", "start", "status"),
]

PATIENCE_S = 120
SERVER, PROXY, SOCKET = (
    f"sparkdeploy-main{ending}" for ending in (".service", "-proxy.service", ".socket")
)


@dataclass(frozen=True)
class Owner:
    """Someone whose deployment sleeps behind a socket, on a machine that boots."""

    machine: BootedMachine
    user: StandInEngine

    def sparkdeploy(self, *words: str) -> str:
        """Run the program there; it succeeds."""
        done = self.machine.run(sys.executable, "-m", "sparkdeploy", *words, env=self.user.env)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def states(self) -> tuple[str, str, str]:
        """Of the server, the way to it and the socket."""
        server, proxy, socket = (
            self.machine.show(unit, "ActiveState") for unit in (SERVER, PROXY, SOCKET)
        )
        return server, proxy, socket

    def containers(self, *options: str) -> str:
        """The ids of those that run; with `--all` also of others."""
        return self.machine.run("docker", "ps", "--quiet", *options).stdout.strip()

    def ask(self) -> str:
        """What a client with patience is answered on the port that it knows."""
        with self.machine.network():
            connection = HTTPConnection("127.0.0.1", self.user.port, timeout=PATIENCE_S)
            connection.request("GET", "/v1/models")
            (model,) = json.loads(connection.getresponse().read())["data"]
            connection.close()
        return str(model["id"])

    def journal(self) -> str:
        """What the units have said."""
        units = (f"--unit={unit}" for unit in (SERVER, PROXY, SOCKET))
        return self.machine.run("journalctl", "--no-pager", *units).stdout[-5000:]


@pytest.fixture(scope="module")
def owner(
    host: DockerHost, python_base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Owner]:
    """A machine with the three units; nothing was started."""
    root = tmp_path_factory.mktemp("woken")
    with user_of_a_booted_machine(host, python_base_image, root) as (machine, user):
        made = Owner(machine, user)
        idle = ("--set", "limits.idle_stop_s=20")
        made.sparkdeploy("export", "systemd", "standin", "--socket", "-o", f"{root}/units", *idle)
        for unit in Path(root, "units").iterdir():
            (machine.folder / "etc/systemd/system" / unit.name).write_text(unit.read_text())
        for words in (("daemon-reload",), ("enable", "--now", SOCKET)):
            done = machine.run("systemctl", *words)
            assert done.returncode == 0, done.stderr
        yield made


def woken(owner: Owner) -> float:
    """The seconds that a client waited for its answer."""
    began_s = time.monotonic()
    try:
        assert owner.ask()
    except OSError as error:
        raise AssertionError(owner.journal()) from error
    return time.monotonic() - began_s


def test_the_first_connection_starts_it_and_nothing_did_before(owner: Owner) -> None:
    assert owner.states() == ("inactive", "inactive", "active")
    assert owner.containers("--all") == ""
    print(f"the first request waited {woken(owner):.1f} s")
    until(lambda: owner.states() == ("active", "active", "active"))
    assert woken(owner) < 5


def test_an_idle_one_sleeps_and_the_same_is_woken(owner: Owner) -> None:
    before = owner.containers()
    until(lambda: owner.states() == ("inactive", "inactive", "active"))
    assert (owner.containers(), owner.containers("--all")) == ("", before)
    assert "stopped, idle for 20s" in owner.sparkdeploy("status")
    print(f"a request that finds it asleep waited {woken(owner):.1f} s")
    assert owner.containers() == before


def test_what_died_is_started_again_by_the_unit_or_the_next_request(owner: Owner) -> None:
    before = owner.containers()
    owner.machine.run("docker", "kill", before)
    until(lambda: owner.states()[0] != "active")
    woken(owner)
    until(lambda: owner.states() == ("active", "active", "active"))
    assert owner.containers() not in ("", before)


def test_after_a_boot_it_sleeps_until_somebody_asks(owner: Owner) -> None:
    owner.machine.reboot()
    until(lambda: owner.states()[2] == "active")
    assert owner.containers() == ""
    woken(owner)
