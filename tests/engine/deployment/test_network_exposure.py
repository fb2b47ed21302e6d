"""Who can reach a deployment, tried from a neighbour: a network namespace of its own.

The network's shape and the address to bind are the product's own decisions for a recipe; only the
program that listens is a small one. Needs root, for the namespace.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy import labels
from sparkdeploy.node.host import DockerHost
from sparkdeploy.plan.container import Deployment, HostFolders
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.settings import resources
from tests.engine.conftest import TEST_LABEL, free_port, until
from tests.fakes.plans import model_fact
from tests.launching import container_spec

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="making a network namespace needs root"),
]

# Prints those of its arguments (address:port) that accept a connection.
KNOCK = """
import socket, sys
for target in sys.argv[1:]:
    address, port = target.rsplit(":", 1)
    try:
        socket.create_connection((address, int(port)), timeout=2).close()
    except OSError:
        continue
    print(target)
"""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A machine on a network of this host, with a route to everything the host routes."""

    namespace: str
    host_address: str

    def reaches(self, addresses: set[str], port: int) -> set[str]:
        """Return the addresses on which the port accepts a connection from the neighbour."""
        targets = [f"{address}:{port}" for address in sorted(addresses)]
        command = ["nsenter", f"--net=/run/netns/{self.namespace}", sys.executable, "-c", KNOCK]
        answered = _output(*command, *targets)
        return {line.rsplit(":", 1)[0] for line in answered.splitlines()}


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    mark = uuid.uuid4()
    namespace, ours, theirs = f"lab-{mark.hex[:8]}", f"lb{mark.hex[:8]}h", f"lb{mark.hex[:8]}n"
    subnet = f"10.203.{mark.int % 256}"
    inside = ("ip", "-n", namespace)
    _output("ip", "netns", "add", namespace)
    try:
        _output("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs)
        _output("ip", "link", "set", theirs, "netns", namespace)
        _output("ip", "addr", "add", f"{subnet}.1/30", "dev", ours)
        _output("ip", "link", "set", ours, "up")
        _output(*inside, "addr", "add", f"{subnet}.2/30", "dev", theirs)
        _output(*inside, "link", "set", theirs, "up")
        _output(*inside, "route", "add", "default", "via", f"{subnet}.1")
        yield Neighbour(namespace, f"{subnet}.1")
    finally:
        _output("ip", "netns", "delete", namespace)


@pytest.fixture
def serve(
    host: DockerHost, stand_in_image: str, mark: str, deployment: str, tmp_path: Path
) -> Callable[[bool], tuple[str, int]]:
    """Start a deployment in the product's shape for an exposure; return its id and port."""

    def start(is_public: bool) -> tuple[str, int]:
        port = free_port()
        library = Library((resources() / "recipes",))
        shape = container_spec(
            load_recipe(library, "v2", [f"serve.port={port}"]),
            model_fact(treated=False, root=tmp_path, files="", owner_uid=0, owner_gid=0),
            image=stand_in_image,
            deployment=Deployment(deployment, is_public=is_public),
            folders=HostFolders(cache=tmp_path / "cache", key_file=tmp_path / "key"),
        )
        bound = shape.command[shape.command.index("--host") + 1]
        spec = replace(
            shape,
            entrypoint=("python3", "-m", "http.server"),
            command=("--bind", bound, str(port)),
            mounts=(),
            gpus="none",
            ulimits=(),
            # What it promises would count against other tests that deploy on this engine.
            labels={**shape.labels, TEST_LABEL: mark, labels.MEMORY: "0"},
        )
        container_id = host.create(spec)
        host.start(container_id)
        until(lambda: _listens(port))
        return container_id, port

    return start


def test_no_address_answers_a_neighbour_by_default(
    host: DockerHost, neighbour: Neighbour, serve: Callable[[bool], tuple[str, int]]
) -> None:
    container_id, port = serve(False)
    addresses = _host_addresses() | _container_addresses(host.inspect(container_id))
    assert neighbour.host_address in addresses
    assert neighbour.reaches(addresses, port) == set()


def test_a_public_deployment_answers_the_neighbour(
    neighbour: Neighbour, serve: Callable[[bool], tuple[str, int]]
) -> None:
    """Without this one, a neighbour with no route at all would pass the test above."""
    _, port = serve(True)
    assert neighbour.reaches(_host_addresses(), port) >= {neighbour.host_address}


def _host_addresses() -> set[str]:
    interfaces: list[dict[str, Any]] = json.loads(_output("ip", "-json", "-4", "addr"))
    found = {item["local"] for interface in interfaces for item in interface["addr_info"]}
    return {address for address in found if not address.startswith("127.")}


def _container_addresses(record: dict[str, Any]) -> set[str]:
    networks = record["NetworkSettings"]["Networks"].values()
    return {network["IPAddress"] for network in networks if network["IPAddress"]}


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
