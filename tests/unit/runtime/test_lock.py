"""The node's lock."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.runtime.lock import lock_holder, lock_path, node_lock

HOLD = """
import sys, time, pathlib
from sparkdeploy.runtime.lock import node_lock
with node_lock(pathlib.Path(sys.argv[1]), "spark-1", command="sparkdeploy up v2"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_holder_is_refused_and_told_who_holds(
    tmp_path: Path, other_process: "subprocess.Popen[str]"
) -> None:
    with (
        pytest.raises(NodeError) as caught,
        node_lock(tmp_path, "spark-1", command="sparkdeploy down"),
    ):
        pass

    assert "`sparkdeploy up v2`" in caught.value.message
    assert f"pid {other_process.pid}" in caught.value.message
    assert caught.value.exit_code == 4


def test_the_lock_of_a_killed_process_is_free(
    tmp_path: Path, other_process: "subprocess.Popen[str]"
) -> None:
    other_process.send_signal(signal.SIGKILL)
    other_process.wait()

    with node_lock(tmp_path, "spark-1", command="sparkdeploy up"):
        pass


def test_waiting_says_once_who_holds_and_ends_in_time(
    tmp_path: Path, other_process: "subprocess.Popen[str]"
) -> None:
    now_s = [0.0]
    told: list[str] = []

    def sleep(duration_s: float) -> None:
        now_s[0] += duration_s

    with (
        pytest.raises(NodeError),
        node_lock(
            tmp_path,
            "spark-1",
            command="x",
            wait_s=5,
            on_wait=told.append,
            clock=lambda: now_s[0],
            sleep=sleep,
        ),
    ):
        pass

    assert now_s[0] == pytest.approx(5)
    assert len(told) == 1
    assert "sparkdeploy up v2" in told[0]


def test_two_nodes_have_locks_of_their_own(
    tmp_path: Path, other_process: "subprocess.Popen[str]"
) -> None:
    with node_lock(tmp_path, "spark-2", command="x"):
        pass


def test_the_holder_is_known_while_it_holds_and_no_longer(tmp_path: Path) -> None:
    with node_lock(tmp_path, "n", command="sparkdeploy up"):
        holder = lock_holder(tmp_path, "n")
        assert holder is not None
        assert holder.command == "sparkdeploy up"

    assert lock_holder(tmp_path, "n") is None


def test_a_nodes_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    path = lock_path(tmp_path, "ssh://user@host/../../x")

    assert path.parent == tmp_path


def test_the_lock_is_for_every_user_of_the_machine(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    with node_lock(folder, "n", command="sparkdeploy up"):
        assert lock_path(folder, "n").stat().st_mode & 0o777 == 0o666
        assert folder.stat().st_mode & 0o1777 == 0o1777


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(NodeError, match="cannot be opened"),
        node_lock(tmp_path / "file", "n", command="x"),
    ):
        pass
