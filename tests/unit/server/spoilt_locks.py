"""What another user may have put where a lock would be, and two users without a name."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PATIENCE_S = 5
MALLORY = 61234
"""Users without a name: nothing of the machine belongs to them."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user as well")


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """What waits for a FIFO's other end waits for ever."""

    def give_up(*_: object) -> None:
        raise AssertionError("it blocks")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """All below a folder: mode, number of names and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_mode, status.st_nlink, content)
    return found


def make_outside(base: Path) -> Path:
    outside = base / "outside"
    (outside / "folder").mkdir(parents=True)
    for name in ("canary", "linked"):
        (outside / name).write_text("root's own")
        (outside / name).chmod(0o600)
    return outside


ENTRIES: dict[str, Callable[[Path, Path, bytes], object]] = {
    "nothing": lambda _path, _outside, _note: None,
    "a file": lambda path, _outside, note: path.write_bytes(note),
    "a file for nobody": lambda path, _outside, note: write(path, note, mode=0),
    "a link to a file": lambda path, outside, _note: path.symlink_to(outside / "canary"),
    "a link to a folder": lambda path, outside, _note: path.symlink_to(outside / "folder"),
    "a link to nothing": lambda path, outside, _note: path.symlink_to(outside / "new"),
    "a link to itself": lambda path, _outside, _note: path.symlink_to(path.name),
    "a hard link": lambda path, outside, _note: path.hardlink_to(outside / "linked"),
    "a FIFO": lambda path, _outside, _note: os.mkfifo(path),
    "a folder": lambda path, _outside, _note: path.mkdir(),
    "a socket": lambda path, _outside, _note: bind(path),
    "a device": lambda path, _outside, _note: path.symlink_to("/dev/zero"),
}
SPOILT = frozenset(ENTRIES) - {"nothing", "a file", "a file for nobody"}


def write(path: Path, content: bytes, *, mode: int) -> None:
    path.write_bytes(content)
    path.chmod(mode)


def make(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)


def bind(path: Path) -> None:
    """A socket's name is at most 107 bytes long, so it is given from within the folder."""
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
