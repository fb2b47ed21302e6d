"""The node's lock."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkdeploy.errors import NodeError
from sparkdeploy.node.lock import lock_holder, lock_path, node_lock
from tests.unit.server.neighbours import Neighbours

pytestmark = pytest.mark.outside


@pytest.fixture
def holder(tmp_path: Path, others: Neighbours) -> Iterator[int]:
    """Another process that holds the lock: its pid."""
    pid = others.hold_lock(os.getuid(), tmp_path)
    yield pid
    others.kill(pid)


def test_a_second_holder_is_refused_and_told_who_holds(tmp_path: Path, holder: int) -> None:
    with (
        pytest.raises(NodeError) as caught,
        node_lock(tmp_path, "spark-1", command="sparkdeploy down"),
    ):
        pass

    assert "`sparkdeploy up v2`" in caught.value.message
    assert f"pid {holder}" in caught.value.message
    assert caught.value.exit_code == 4


def test_the_lock_of_a_killed_process_is_free(
    tmp_path: Path, holder: int, others: Neighbours
) -> None:
    others.kill(holder)

    with node_lock(tmp_path, "spark-1", command="sparkdeploy up"):
        pass


def test_waiting_says_once_who_holds_and_ends_in_time(
    tmp_path: Path, holder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    told: list[str] = []

    def sleep(duration_s: float) -> None:
        now_s[0] += duration_s

    time = SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep)
    monkeypatch.setattr("sparkdeploy.node.lock.time", time)
    with (
        pytest.raises(NodeError),
        node_lock(tmp_path, "spark-1", command="x", wait_s=5, on_wait=told.append),
    ):
        pass

    assert now_s[0] == pytest.approx(5)
    assert len(told) == 1
    assert "sparkdeploy up v2" in told[0]


def test_two_nodes_have_locks_of_their_own(tmp_path: Path, holder: int) -> None:
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
