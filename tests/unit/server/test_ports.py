"""Free ports and their owners."""

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy import labels
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.ports import PortOwner, is_port_free, port_owner


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        yield int(server.getsockname()[1])


def container(port: int, state: str = "running") -> ContainerFact:
    marks = {labels.DEPLOYMENT: "main", labels.PORT: str(port)}
    return ContainerFact("c", "sparkdeploy-main", "i", state, marks)


def test_a_port_with_a_listener_is_not_free(taken_port: int) -> None:
    assert not is_port_free(taken_port)


def test_a_process_that_listens_is_named(taken_port: int) -> None:
    owner = port_owner(taken_port, [])

    assert owner.pid == os.getpid()
    assert f"(pid {os.getpid()})" in owner.describe()


def test_our_own_deployment_is_named_before_its_process(taken_port: int) -> None:
    assert port_owner(taken_port, [container(taken_port)]) == PortOwner(deployment="main")


def test_a_deployment_owns_its_port_before_it_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = int(server.getsockname()[1])
        owner = port_owner(port, [container(port)])

    assert owner == PortOwner(deployment="main", is_listening=False)


def test_a_worker_does_not_listen_on_the_port_of_its_head() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = int(server.getsockname()[1])
    worker = container(port)
    marks = {**worker.labels, labels.NODES: "a,b", labels.RANK: "1"}

    assert port_owner(port, [replace(worker, labels=marks)]) == PortOwner()


def test_an_owner_that_cannot_be_seen_is_admitted(taken_port: int, tmp_path: Path) -> None:
    assert port_owner(taken_port, [], proc=tmp_path) == PortOwner()
