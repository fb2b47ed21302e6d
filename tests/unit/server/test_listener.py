"""Who listens on a port, whose it is, and what is sent to whom."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sparkdeploy import labels
from sparkdeploy.deploy.serving import require_listener
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.node.container import ContainerFact
from sparkdeploy.node.ports import Listener, PortOwner, is_port_free, listener_of, port_owner
from sparkdeploy.node.reports import read_container, read_listed_container
from sparkdeploy.server.client import ServedModel

LISTEN = (
    "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
    "print(s.getsockname()[1], flush=True); sys.stdin.read()"
)
IN_A_CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
TABLE = "  sl  local_address rem_address st tx:rx tr tm retr uid timeout inode\n"
LINE = "   0: {address}:1F40 00000000:0000 {state} 0:0 0:0 0 {uid} 0 {inode} 1\n"


OWN_GROUP = Path("/proc/self/cgroup").read_text().strip()
"""Stands for a container's id in the groups of this process, and of those that it starts."""


def fact(
    pid: int | None, uid: int | None = None, port: int = 8000, container_id: str = OWN_GROUP
) -> ContainerFact:
    marks = {"dev.sparkdeploy.port": str(port)}
    name = "sparkdeploy-main"
    return ContainerFact(container_id, name, "i", "running", marks, pid=pid, uid=uid)


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program whose child listens, and the port."""
    argv = (sys.executable, "-c", IN_A_CHILD, LISTEN)
    with subprocess.Popen(argv, stdin=-1, stdout=-1, text=True) as running:
        assert running.stdout is not None
        yield running, int(running.stdout.readline())
        assert running.stdin is not None
        running.stdin.close()


def test_a_process_of_the_container_is_told_from_another(
    other: tuple[subprocess.Popen[str], int],
) -> None:
    running, port = other
    assert listener_of(fact(running.pid), port) is Listener.CONTAINER
    with subprocess.Popen((sys.executable, "-c", "input()"), stdin=-1) as stranger:
        assert listener_of(fact(stranger.pid, os.getuid()), port) is Listener.ANOTHER
        stranger.kill()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_only_is_bound_is_nobodys(address: str) -> None:
    with socket.socket() as bound:
        bound.bind((address, 0))
        port = bound.getsockname()[1]
        assert listener_of(fact(os.getpid()), port) is Listener.NOBODY
        bound.listen()
        assert listener_of(fact(os.getpid()), port) is Listener.CONTAINER


def written(proc: Path, uid: int, *, address: str = "0100007F", state: str = "0A") -> Path:
    (proc / "net").mkdir()
    line = LINE.format(address=address, state=state, uid=uid, inode=77)
    (proc / "net" / "tcp").write_text(TABLE + line)
    return proc


@pytest.mark.parametrize(
    ("uid", "of_the_container", "found"),
    [
        (1000, 1000, Listener.CONTAINER),
        (1001, 1000, Listener.ANOTHER),
        (0, 1000, Listener.ANOTHER),
        (1000, None, Listener.UNKNOWN),
    ],
)
def test_where_processes_are_not_shown_the_sockets_user_decides(
    tmp_path: Path, uid: int, of_the_container: int | None, found: Listener
) -> None:
    assert listener_of(fact(42, of_the_container), 8000, written(tmp_path, uid)) is found


def test_one_socket_of_another_user_beside_the_containers_own_is_enough(tmp_path: Path) -> None:
    table = written(tmp_path, 1000) / "net" / "tcp"
    line = LINE.format(address="00000000", state="0A", uid=1001, inode=78)
    table.write_text(table.read_text() + line)
    assert listener_of(fact(42, 1000), 8000, tmp_path) is Listener.ANOTHER


@pytest.mark.parametrize(("address", "state"), [("0BB1A8C0", "0A"), ("0100007F", "06")])
def test_who_listens_elsewhere_or_is_leaving_is_not_asked(
    tmp_path: Path, address: str, state: str
) -> None:
    table = written(tmp_path, 1001, address=address, state=state)
    assert listener_of(fact(42, 1000), 8000, table) is Listener.NOBODY


def test_no_table_is_not_known_to_be_good(tmp_path: Path) -> None:
    assert listener_of(fact(42, 1000), 8000, tmp_path) is Listener.UNKNOWN


def test_neither_key_nor_prompt_is_sent_to_another_program() -> None:
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        port = foreign.getsockname()[1]
        with subprocess.Popen((sys.executable, "-c", "input()"), stdin=-1) as container:
            check = partial(require_listener, fact(container.pid, port=port))
            with (
                ServedModel(
                    f"http://127.0.0.1:{port}", "sk-right", require_listener=check
                ) as model,
                pytest.raises(UnhealthyError, match="another program than sparkdeploy-main"),
            ):
                model.ask("/v1/completions", {"prompt": "secret"})
            container.kill()
        foreign.setblocking(False)
        with pytest.raises(BlockingIOError):
            foreign.accept()


def test_dockers_record_names_process_and_user() -> None:
    record = {
        "Id": "c1",
        "Name": "/sparkdeploy-main",
        "Image": "i",
        "State": {"Status": "running", "Pid": 42},
        "Config": {"Labels": {}, "User": "65532:65532"},
    }
    found = read_container(json.loads(json.dumps(record)))
    assert (found.pid, found.uid) == (42, 65532)
    ended = {"Status": "exited", "Pid": 0, "ExitCode": 137, "OOMKilled": True}
    record["State"], record["Config"] = ended, {"User": "nobody"}
    found = read_container(record)
    assert (found.pid, found.uid) == (None, None)
    assert (found.exit_code, found.oom_killed, found.is_stopped) == (137, True, False)
    listed = {"Id": "c1", "Names": ["/other/alias", "/sparkdeploy-main"]}
    assert read_listed_container(listed).name == "sparkdeploy-main"


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


def test_a_port_whose_last_connection_lingers_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            server.accept()[0].close()
            assert client.recv(1) == b""
    assert is_port_free(port)


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
        stopped = port_owner(port, [container(port, "exited")])
    assert owner == PortOwner(deployment="main", is_listening=False)
    assert stopped == PortOwner()


def test_a_worker_does_not_listen_on_the_port_of_its_head() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = int(server.getsockname()[1])
    worker = container(port)
    marks = {**worker.labels, labels.NODES: "a,b", labels.RANK: "1"}
    assert port_owner(port, [replace(worker, labels=marks)]) == PortOwner()


def test_an_owner_that_cannot_be_seen_is_admitted(taken_port: int, tmp_path: Path) -> None:
    assert port_owner(taken_port, [], proc=tmp_path) == PortOwner()
