"""A disk that records the order of fsync and rename: what a power cut would leave can be judged."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.checkpoint import durable

_Version = tuple[int, int]


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _version(status: os.stat_result) -> _Version:
    return status.st_size, status.st_mtime_ns


@dataclass(slots=True)
class RecordedDisk:
    """Every rename, the files that were not on the disk by then, and folders not synced since."""

    renamed: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    """Files that got their name before their content was synced."""
    unsynced_folders: dict[tuple[int, int], str] = field(default_factory=dict)
    """Folders whose newest name would be lost by a power cut."""
    _synced: dict[tuple[int, int], _Version] = field(default_factory=dict)

    def fsync(self, file: Any) -> None:
        """Record which version of a file, or which folder, is on the disk."""
        status = os.fstat(file if isinstance(file, int) else file.fileno())
        self._synced[_key(status)] = _version(status)
        self.unsynced_folders.pop(_key(status), None)

    def before_rename(self, source: Path) -> None:
        """Record what of a file, or of a folder's own files, is not on the disk.

        A link has no content, and is made anew by whoever needs it.
        """
        if source.is_symlink():
            return
        paths = [source, *source.rglob("*")] if source.is_dir() else [source]
        for path in paths:
            status = path.lstat()
            is_own = path.is_file() and not path.is_symlink() and status.st_nlink == 1
            if is_own and self._synced.get(_key(status)) != _version(status):
                self.early.append(f"{source.name}: {path.name}")

    def after_rename(self, target: Path) -> None:
        """Record the name, and that its folder has to be synced."""
        self.renamed.append(target.name)
        if target.is_symlink():
            return
        self.unsynced_folders[_key(target.parent.stat())] = str(target.parent)


def record_disk(patch: pytest.MonkeyPatch) -> RecordedDisk:
    """Record fsync, rename and the exchange of two names from now on."""
    disk = RecordedDisk()
    for name in ("fsync", "fdatasync"):
        patch.setattr(os, name, disk.fsync)
    for name in ("rename", "replace"):
        patch.setattr(os, name, _recording(disk, getattr(os, name)))
    exchange = durable._exchange

    def exchanged(one: Path, other: Path) -> bool:
        disk.before_rename(one)
        is_done = exchange(one, other)
        if is_done:
            disk.after_rename(other)
        return is_done

    patch.setattr(durable, "_exchange", exchanged)
    return disk


def without_exchange(patch: pytest.MonkeyPatch) -> None:
    """Let the system have no renameat2, as on older file systems."""

    class Nothing:
        pass

    patch.setattr(ctypes, "CDLL", lambda _name: Nothing())


def _recording(disk: RecordedDisk, rename: Any) -> Any:
    def recorded(
        source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        disk.before_rename(_whole(source, src_dir_fd))
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        disk.after_rename(_whole(target, dst_dir_fd))

    return recorded


def _whole(name: Any, folder: int | None) -> Path:
    path = Path(os.fsdecode(name))
    return path if folder is None else Path(f"/proc/self/fd/{folder}").readlink() / path
