"""The guard sends its key and its questions to a server that it started, and to no other."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sparkdeploy_vllm.guard import listening
from sparkdeploy_vllm.guard.asking import ANSWER_TIMEOUT_S, PollingRequest, question
from sparkdeploy_vllm.guard.listening import is_server_below
from sparkdeploy_vllm.guard.stalling import metrics_request, stall_watch

KEY = "a-key-of-the-deployment"
LISTEN = (
    "import socket, sys; s = socket.socket({family}); "
    "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
    "s.bind(({address!r}, {port})); s.listen(); "
    "print(s.getsockname()[1], flush=True); sys.stdin.read()"
)
TABLE = "  sl  local_address rem_address st tx:rx tr tm retr uid timeout inode\n"


@contextmanager
def child(address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """A process of ours that listens; its port."""
    family = int(socket.AF_INET6 if ":" in address else socket.AF_INET)
    script = LISTEN.format(address=address, port=port, family=family)
    with subprocess.Popen((sys.executable, "-c", script), stdin=-1, stdout=-1) as running:
        assert running.stdout is not None
        assert running.stdin is not None
        try:
            yield int(running.stdout.readline())
        finally:
            running.stdin.close()


def looked_at(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        return is_server_below(connection)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
def test_a_server_that_it_started_is_its_own(address: str) -> None:
    with child(address) as port:
        assert looked_at(port)


def test_a_server_that_somebody_else_started_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as another:
        assert not looked_at(another.getsockname()[1])


@pytest.mark.parametrize(
    ("uid", "accepted_by", "is_own"), [(0, 0, True), (1, 0, False), (0, 1, False)]
)
def test_where_its_processes_may_not_be_read_the_user_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uid: int, accepted_by: int, is_own: bool
) -> None:
    def unreadable(_pid: int) -> set[bytes]:
        raise PermissionError

    monkeypatch.setattr(listening, "_socket_inodes", unreadable)
    with child() as port, socket.create_connection(("127.0.0.1", port)) as connection:
        here, there = f"0100007F:{connection.getsockname()[1]:04X}", f"0100007F:{port:04X}"
        own = os.getuid()
        line = f"0: {there} 00000000:0000 0A 0:0 0:0 0 {own + uid} 0 77 1\n"
        line += f"1: {there} {here} 01 0:0 0:0 0 {own + accepted_by} 0 78 1\n"
        table = tmp_path / "tcp"
        table.write_text(TABLE + line)
        monkeypatch.setattr(listening, "TABLES", (table,))
        assert is_server_below(connection) is is_own


def of_the_stall_watch(server: str) -> PollingRequest:
    return stall_watch(server, KEY, 60.0, canary_model="").metrics


def of_the_canary(server: str) -> PollingRequest:
    canary = stall_watch(server, KEY, 60.0, canary_model="m").canary
    assert canary is not None
    return canary.ask


def of_the_idle_watch(server: str) -> PollingRequest:
    return metrics_request(server, KEY)


@pytest.mark.parametrize("made", [of_the_stall_watch, of_the_canary, of_the_idle_watch])
@pytest.mark.parametrize("is_own", [False, True])
def test_no_request_with_a_key_goes_to_another(
    made: Callable[[str], PollingRequest], is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        request = made(f"http://127.0.0.1:{server.getsockname()[1]}")
        assert request.may_send is is_server_below
        if is_own:
            monkeypatch.setattr(request, "may_send", lambda _connection: True)
        request.tick(time.monotonic())
        accepted, _ = server.accept()
        with accepted:
            request.tick(time.monotonic())
            assert request.is_waiting is is_own
            if not is_own:
                assert accepted.recv(65_536) == b""
            else:
                assert KEY.encode() in accepted.recv(65_536)
            request._hang_up()


def test_a_port_where_nobody_listens_is_given_up() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        request = of_the_canary(f"http://127.0.0.1:{bound.getsockname()[1]}")
        request.tick(0.0)
        request.tick(0.1)
        assert not request.is_waiting


def test_a_second_answer_has_nothing_of_the_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = question(f"http://127.0.0.1:{server.getsockname()[1]}/health")
        for at_s, status in ((0.0, b"503"), (10.0, b"200")):
            asked.tick(at_s)
            accepted, _ = server.accept()
            with accepted:
                asked.tick(at_s)
                accepted.recv(65_536)
                accepted.sendall(b"HTTP/1.1 %s it\r\n\r\n" % status)
            while (reply := asked.tick(at_s)) is None:
                assert asked.is_waiting
            assert reply.status == status


def test_a_server_that_takes_the_connection_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = question(f"http://127.0.0.1:{server.getsockname()[1]}/health")
        for at_s in (0.0, 0.1, ANSWER_TIMEOUT_S):
            assert asked.tick(at_s) is None
            assert asked.is_waiting
        assert asked.tick(ANSWER_TIMEOUT_S + 0.1) is None
        assert not asked.is_waiting
