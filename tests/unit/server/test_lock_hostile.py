"""The lock in a folder where another user was first: he chooses what lies there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkdeploy.errors import CheckpointError, NodeError
from sparkdeploy.node import lock, shared_files
from sparkdeploy.node.lock import lock_holder, lock_path, node_lock, watching
from sparkdeploy.settings import SHARED_LOCK_DIR
from tests.examples import examples
from tests.unit.server.spoilt_locks import (
    ENTRIES,
    MALLORY,
    SPOILT,
    as_root,
    impatient,
    make,
    make_outside,
    tree,
)

pytestmark = pytest.mark.outside

MAX_NAME = 200
OTHER_FOLDER = "set SPARKDEPLOY_LOCK_DIR to another folder: root's or your own"

FOLDERS: dict[str, Callable[[Path, Path], object]] = {
    "nothing": lambda _folder, _outside: None,
    "shared": lambda folder, _outside: make(folder, 0o1777),
    "private": lambda folder, _outside: make(folder, 0o700),
    "anybody's": lambda folder, _outside: make(folder, 0o777),
    "a link": lambda folder, outside: folder.symlink_to(outside / "folder"),
    "a link to nothing": lambda folder, outside: folder.symlink_to(outside / "new"),
    "a file": lambda folder, _outside: folder.write_text("x"),
    "a FIFO": lambda folder, _outside: os.mkfifo(folder),
}
NAMES = st.text("a/.- ü", min_size=1, max_size=12) | st.sampled_from(
    ["spark-1", "../../x", "/etc/passwd", "x" * 300, "ssh://user@host"]
)
VALUES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["\x1b[2J", "\ud800", "`; rm -rf /", "x" * 9000, "a\nb", "2026-01-01"]),
    st.integers(),
    st.floats(),
    st.none(),
    st.booleans(),
    st.lists(st.integers(), max_size=2),
    st.just(os.getpid()),
)
NOTES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"[" * 9000, b'{"pid": ' + b"9" * 5000, b"\x00" * 100_000, b"null", b"[]"]),
    st.dictionaries(st.sampled_from(["pid", "command", "since", "user"]), VALUES).map(
        lambda note: json.dumps(note).encode()
    ),
)


def printable(error: NodeError | CheckpointError) -> bool:
    return all(text.isprintable() for text in (error.message, error.hint or "", error.detail or ""))


def take(folder: Path, name: str, told: list[str]) -> NodeError | None:
    try:
        with node_lock(folder, name, command="sparkdeploy up", on_wait=told.append, wait_s=0.001):
            return None
    except NodeError as error:
        return error


@settings(max_examples=examples(400))
@given(
    folder_kind=st.sampled_from(["shared"] * 8 + list(FOLDERS)),
    entry=st.sampled_from(sorted(ENTRIES)),
    name=NAMES,
    note=NOTES,
    is_held=st.booleans(),
)
def test_whatever_lies_in_the_lock_folder_nothing_outside_it_is_touched(
    folder_kind: str, entry: str, name: str, note: bytes, is_held: bool
) -> None:
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_files, "SETTLE_S", (0.0,), raising=False)
        base = Path(scratch)
        outside, folder = make_outside(base), base / "locks"
        FOLDERS[folder_kind](folder, outside)
        path = lock_path(folder, name)
        has_entry = folder.is_dir() and not folder.is_symlink() and len(path.name) < MAX_NAME
        if has_entry:
            ENTRIES[entry](path, outside, note)
        before, told = tree(outside), list[str]()
        with impatient(), holding(path if is_held and has_entry else None):
            refusal = take(folder, name, told)
            holder = lock_holder(folder, name)
            with watching(folder, name, "main", command="sparkdeploy up"):
                pass
        assert tree(outside) == before
        assert refusal is None or printable(refusal)
        assert all(text.isprintable() for text in told)
        assert holder is None or holder.describe().isprintable()
        if entry in SPOILT and has_entry:
            assert refusal is not None


@contextlib.contextmanager
def holding(path: Path | None) -> Iterator[None]:
    """Hold a lock as another process does: flock belongs to the opened file, not the process."""
    if path is None or path.is_symlink() or not path.is_file():
        yield
        return
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@settings(max_examples=examples(200))
@given(note=NOTES)
@example(note=b'{"pid": 1, "command": "init"}')
def test_a_note_is_believed_only_of_the_process_that_holds_the_lock(note: bytes) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "locks"
        with node_lock(folder, "n", command="sparkdeploy up v2"):
            lock_path(folder, "n").write_bytes(note)
            holder = lock_holder(folder, "n")
    assert holder is not None
    assert holder.pid == os.getpid()
    assert len(holder.describe()) < 400
    if said(note).get("pid") != os.getpid():
        assert holder.command == ""


def said(note: bytes) -> dict[str, Any]:
    try:
        found = json.loads(note)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def test_a_lock_whose_file_was_removed_meanwhile_is_not_taken(tmp_path: Path) -> None:
    path = lock_path(tmp_path, "n")
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def remove_and_free(_text: str) -> None:
            path.unlink()
            fcntl.flock(file, fcntl.LOCK_UN)

        with (
            pytest.raises(NodeError, match="was removed while it was waited for"),
            node_lock(tmp_path, "n", command="x", wait_s=5, on_wait=remove_and_free),
        ):
            pass


def test_only_sparkdeploys_own_lock_folder_is_ever_removed_by_a_hint() -> None:
    assert lock.made_anew(Path(SHARED_LOCK_DIR)) == (
        f"as root: rm -rf {SHARED_LOCK_DIR} && mkdir -m 1777 {SHARED_LOCK_DIR}"
    )


@pytest.mark.parametrize("entry", sorted(SPOILT))
def test_the_hint_for_a_spoilt_lock_destroys_nothing_but_that_name(
    tmp_path: Path, entry: str
) -> None:
    outside, folder = make_outside(tmp_path), tmp_path / "locks"
    make(folder, 0o1777)
    path = lock_path(folder, "n")
    ENTRIES[entry](path, outside, b"")
    if path.is_dir() and not path.is_symlink():
        (path / "somebody's").write_text("work")
    refusal = take(folder, "n", [])
    assert refusal is not None
    assert refusal.hint is not None
    subprocess.run(shlex.split(refusal.hint.removeprefix("as root: ")), check=True)
    assert take(folder, "n", []) is None
    assert {item.name for item in outside.iterdir()} == {"canary", "folder", "linked"}
    assert len([*folder.rglob("somebody's")]) == (entry == "a folder")


# ------------------------------------------------------------------------- two users of a machine


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder such as /run/lock, on a path that every user may walk."""
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        base = Path(scratch)
        base.chmod(0o755)
        make(base / "lock", 0o1777)
        yield base / "lock"


def plant_link(folder: Path, target: Path) -> None:
    """Make the folder, and a link to the target where the lock would be, as another user."""
    script = 'mkdir -m 1777 "$0" && ln -s "$1" "$0/spark-1.lock"'
    argv = ("sh", "-c", script, str(folder), str(target))
    subprocess.run(argv, user=MALLORY, group=MALLORY, extra_groups=[], check=True)


@as_root
@pytest.mark.parametrize("is_there", [True, False])
def test_root_does_not_follow_another_users_link(shared: Path, is_there: bool) -> None:
    target = shared.parent / "shadow"
    if is_there:
        target.write_text("root's own")
        target.chmod(0o600)
    folder = shared / "sparkdeploy"
    plant_link(folder, target)
    with (
        pytest.raises(NodeError, match=f"belongs to uid {MALLORY}") as caught,
        node_lock(folder, "spark-1", command="sparkdeploy down"),
    ):
        pass
    # Mended by halves, the link is still there.
    os.chown(folder, 0, 0)
    with (
        pytest.raises(NodeError, match=f"it is a symbolic link, made by uid {MALLORY}"),
        node_lock(folder, "spark-1", command="sparkdeploy down"),
    ):
        pass
    assert caught.value.hint == OTHER_FOLDER
    assert target.exists() == is_there
    assert not is_there or (target.read_text(), target.stat().st_mode & 0o777) == (
        "root's own",
        0o600,
    )
