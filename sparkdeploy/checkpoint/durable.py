"""Writes that are there after a power cut, folders that change at once, and one builder at a time.

What is new is made under a hidden name beside its target, and takes the target's name when whole.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import platform
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, BinaryIO

from sparkdeploy import atomic_files
from sparkdeploy.checkpoint.repo_files import git_blob_hash, printable
from sparkdeploy.errors import CheckpointError
from sparkdeploy.node.lock import lock_within
from sparkdeploy.node.shared_files import NotPlainError, freeing_command, open_plain
from sparkdeploy.stored_json import open_regular
from sparkdeploy.terminal.console import console

PATIENCE_S = 3600.0
"""How long a second builder waits for the first one's work, which it then finds done."""
COPY_BYTES = 8 << 20
FOREIGN_AGE_S = 7 * 86400.0
"""After which what another machine has left in a shared folder counts as abandoned."""
Progress = Callable[[int, int], None]
_FROM_HERE = -100
"""AT_FDCWD of fcntl.h: relative names are the working folder's."""
_RENAME_EXCHANGE = 2
_UNSUPPORTED = frozenset({errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})


@contextlib.contextmanager
def only_one(
    path: Path,
    work: str,
    *,
    patience_s: float = PATIENCE_S,
    on_wait: Callable[[str], None] = console.info,
) -> Iterator[None]:
    """Hold the lock at `path` inside the block; CheckpointError when it does not come free.

    Other users may write to the folder: a link or a FIFO in the lock's place is an error. The file
    stays, or two builders could lock two files of one name.
    """
    waiting = f"waiting for another process that does the same: {work}"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _open_lock(path)
    try:
        if not lock_within(descriptor, patience_s, lambda: on_wait(waiting)):
            raise CheckpointError(
                f"another process is at the same work: {work}",
                hint=f"wait until it has ended; its lock is {path}",
            )
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    try:
        return open_plain(path)
    except NotPlainError as error:
        raise CheckpointError(
            f"the lock {path} cannot be used: {error.strerror}", hint=freeing_command(path, error)
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"the lock {path} cannot be opened: {error.strerror}",
            hint=f"look at whose it is: ls -l {shlex.quote(str(path))}",
        ) from error


@contextlib.contextmanager
def staged_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `path`, durable and of mode 0644, unless it raises."""
    with atomic_files.replacing(path, 0o644, staged=staging_path(path)) as file:
        yield file
        finish(file)
    sync_folder(path.parent)


def finish(file: IO[bytes]) -> None:
    """Give a file that is written mode 0644, and make its content durable."""
    file.flush()
    os.fchmod(file.fileno(), 0o644)
    os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    with staged_file(path) as file:
        file.write(text.encode())


def write_json(path: Path, content: object) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder of mode 0755, whatever the umask is, unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)


@contextlib.contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield a folder that takes the place of `target`, unless the block raises."""
    staging = staging_path(target)
    try:
        make_folder(staging)
        yield staging
        replace_folder(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def is_replaceable(target: Path, mark: str) -> bool:
    """Whether nothing is there, an empty folder, or one that holds a file called `mark`."""
    if not target.is_dir() or target.is_symlink():
        return not target.exists()
    return (target / mark).is_file() or not any(target.iterdir())


def replace_folder(staged: Path, target: Path) -> None:
    """Give a finished folder its name; an older one of that name is removed last.

    Where the file system can, both names change at once: whoever is killed leaves one or the other.
    """
    retired = staged
    if target.exists():
        if not _exchange(staged, target):
            retired = staging_path(target)
            target.rename(retired)
            staged.rename(target)
    else:
        staged.rename(target)
    shutil.rmtree(retired, ignore_errors=True)
    sync_folder(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Give each the other's name; False where the system or the file system cannot."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "renameat2"):
        return False
    names = (_FROM_HERE, os.fsencode(one), _FROM_HERE, os.fsencode(other))
    return int(libc.renameat2(*names, _RENAME_EXCHANGE)) == 0


def copy_range(source: int, target: int, begin: int, size_bytes: int) -> None:
    """Append a part of one open file to another; CheckpointError when the source ends early.

    The kernel copies, or only links; where it cannot, blocks are read and written.
    """
    end = begin + size_bytes
    while begin < end:
        wanted = min(end - begin, 1 << 30)
        try:
            done = os.copy_file_range(source, target, wanted, offset_src=begin)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            done = os.write(target, os.pread(source, min(wanted, COPY_BYTES), begin))
        if done == 0:
            raise CheckpointError(f"a file became shorter while it was copied, at {begin}")
        begin += done


def copy_file(source: Path, target: Path) -> None:
    with open_regular(source) as old, atomic_files.open_new(target) as new:
        copy_range(old.fileno(), new.fileno(), 0, os.fstat(old.fileno()).st_size)
        finish(new)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or a copy on another file system; mode 0644 either way."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK}:
            raise
        copy_file(source, target)


def content_hash(path: Path, *, is_git: bool = False) -> str:
    """A file's sha256 in hex, or what git and a hub call a small one."""
    with read_errors(path), open_regular(path) as file:
        if not is_git:
            return hashlib.file_digest(file, "sha256").hexdigest()
        blob = git_blob_hash(os.fstat(file.fileno()).st_size)
        return hashlib.file_digest(file, lambda: blob).hexdigest()


@contextlib.contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """Turn what reading a file raises into a CheckpointError about it."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{printable(path)} cannot be read: {error.strerror or error}"
        ) from error


@contextlib.contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn a full disk and its like into a CheckpointError about `what`."""
    try:
        yield
    except OSError as error:
        full = "free some space, then try again"
        file = printable(str(error.filename or ""))
        of = f" ({file})" if file and file not in what else ""
        raise CheckpointError(
            f"{what} cannot be written: {error.strerror or error}{of}",
            hint=full if error.errno in {errno.ENOSPC, errno.EDQUOT} else None,
        ) from error


def staging_path(target: Path) -> Path:
    """Return a new hidden name for `target`; what killed processes have left is removed."""
    remove_leftovers(target)
    unique = f"{secrets.token_hex(8)}-{_machine()}-{os.getpid()}"
    return target.with_name(f"{_hidden(target)}{unique}")


def remove_leftovers(target: Path) -> None:
    """Remove what killed processes have left under hidden names of `target`.

    Names end in a machine and a process's number: living ones are spared, those of another machine
    that shares the folder for a week.
    """
    beside = list(target.parent.iterdir()) if target.parent.is_dir() else []
    for path in beside:
        if path.name.startswith(_hidden(target)) and _is_abandoned(path):
            _remove(path)


def _hidden(target: Path) -> str:
    return f".{target.name}.staging-"


def _is_abandoned(path: Path) -> bool:
    _, machine, number = ["", *path.name.rsplit("-", 2)][-3:]
    if not number.isdecimal():
        return False
    if machine == _machine():
        return not _is_alive(int(number))
    with contextlib.suppress(OSError):
        return time.time() - path.lstat().st_mtime > FOREIGN_AGE_S
    return False


@cache
def _machine() -> str:
    """Return eight digits that stand for this machine's name."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _is_alive(process: int) -> bool:
    """Not so for one that ended and stays until its parent asks, as in containers without init."""
    try:
        os.kill(process, 0)
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    # The state follows the program's name, which stands in brackets and may hold any character.
    return status.rpartition(")")[2].split()[:1] != ["Z"]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
