"""The node's lock."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sparkdeploy import shell
from sparkdeploy.errors import NodeError
from sparkdeploy.node.lock import lock_holder, lock_path, locked_there, node_lock
from sparkdeploy.node.node import Node
from sparkdeploy.node.ssh import SshLink
from tests.unit.server.spoilt_locks import impatient, make

pytestmark = pytest.mark.outside


HOLD = """
import sys
from pathlib import Path
from sparkdeploy.node.lock import node_lock
with node_lock(Path(sys.argv[1]), "spark-1", command="sparkdeploy up v2"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    argv = (sys.executable, "-c", HOLD, str(tmp_path))
    with subprocess.Popen(argv, stdin=-1, stdout=-1, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "held\n"
        yield running
        running.kill()


def test_the_lock_of_a_killed_process_is_free(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with node_lock(tmp_path, "spark-2", command="x"):
        pass  # each node has a lock of its own
    holder.kill()
    holder.wait()
    with node_lock(tmp_path, "spark-1", command="sparkdeploy up"):
        pass


def test_waiting_says_once_who_holds_and_ends_in_time(
    tmp_path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    told: list[str] = []

    def sleep(duration_s: float) -> None:
        now_s[0] += duration_s

    time = SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep)
    monkeypatch.setattr("sparkdeploy.node.lock.time", time)
    with (
        pytest.raises(NodeError, match=f"`sparkdeploy up v2` .pid {holder.pid} of ") as caught,
        node_lock(tmp_path, "spark-1", command="x", wait_s=5, on_wait=told.append),
    ):
        pass
    assert caught.value.exit_code == 4
    assert now_s[0] == pytest.approx(5)
    assert len(told) == 1
    assert "sparkdeploy up v2" in told[0]


def test_all_that_a_holder_has_named_is_known(tmp_path: Path) -> None:
    """A recipe with many adapters names the folder of each, and no `clean` may take one."""
    uses = tuple(f"/srv/{'x' * 200}/{number}" for number in range(100))
    with node_lock(tmp_path, "n", command="sparkdeploy up", uses=uses):
        holder = lock_holder(tmp_path, "n")
    assert holder is not None
    assert (holder.command, holder.uses) == ("sparkdeploy up", uses)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(NodeError, match="cannot be opened"),
        node_lock(tmp_path / "file", "n", command="x"),
    ):
        pass


def test_a_sound_lock_that_cannot_be_opened_just_now_is_not_to_be_removed(tmp_path: Path) -> None:
    with node_lock(tmp_path, "n", command="x"):
        pass
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
    try:
        with pytest.raises(NodeError) as refused, node_lock(tmp_path, "n", command="x"):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "Too many open files" in refused.value.message
    assert "rm " not in f"{refused.value.message} {refused.value.hint}"


NAME = "spark-2-parts"


def another_node(*program: str) -> Node:
    """Return a node whose scripts run here, as what the program makes of itself."""
    link = SimpleNamespace(
        start=lambda script: shell.Running((*program, "sh", "-c", script)), is_open=True
    )
    return Node("spark-2", link=cast("SshLink", link))


def refusal_of(node: Node, path: Path, wait_s: float = 0.0) -> NodeError | None:
    try:
        with locked_there(node, path, wait_s):
            return None
    except NodeError as error:
        return error


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        Path(scratch).chmod(0o755)
        yield Path(scratch) / "locks"


def test_a_missing_folder_is_made_for_every_user(folder: Path) -> None:
    path = lock_path(folder, NAME)
    before = os.umask(0o077)
    try:
        assert refusal_of(another_node(), path) is None
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert path.stat().st_mode & 0o7777 == 0o666
    assert path.read_bytes() == b""


def test_it_is_the_lock_that_the_node_takes_itself(folder: Path) -> None:
    path = lock_path(folder, NAME)
    with node_lock(folder, NAME, command="sparkdeploy up v2"):
        refusal = refusal_of(another_node(), path)
    with (
        locked_there(another_node(), path, 0.0),
        pytest.raises(NodeError, match="is being changed"),
        node_lock(folder, NAME, command="sparkdeploy up v2"),
    ):
        pass
    assert refusal is not None
    assert refusal.message == "spark-2: another command starts containers there"
    assert refusal_of(another_node(), path) is None


def test_a_waiting_program_ends_with_its_connection(folder: Path) -> None:
    path = lock_path(folder, NAME)
    with node_lock(folder, NAME, command="x"):
        program = None

        def start(script: str) -> shell.Running:
            nonlocal program
            program = shell.Running(("sh", "-c", script))
            assert program._process.stdin is not None
            program._process.stdin.close()
            return program

        link = SimpleNamespace(start=start, is_open=True)
        with impatient():
            assert refusal_of(Node("spark-2", link=cast("SshLink", link)), path, 600) is not None


def test_what_the_node_refuses_is_named_with_what_mends_it_there(folder: Path) -> None:
    path = lock_path(folder, NAME)
    make(folder, 0o1777)
    path.symlink_to("/etc/shadow")
    refusal = refusal_of(another_node(), path)
    assert refusal is not None
    assert refusal.message.startswith(f"spark-2: the lock {path} cannot be used: it is ")
    assert refusal.hint == f"on spark-2: as root: rm {path}"
    path.unlink()
    # Anybody may remove files from it.
    folder.chmod(0o777)
    refusal = refusal_of(another_node(), path)
    assert refusal is not None
    assert refusal.hint == f"on spark-2: chmod +t {folder}"


def test_a_node_without_python_is_no_held_lock(folder: Path) -> None:
    refusal = refusal_of(another_node("env", "PATH=/nowhere"), lock_path(folder, NAME))
    assert refusal is not None
    assert "starts containers" not in refusal.message
