"""Files in a folder of the user's choice, where another user may have put links.

A file is made under a random name that nothing has, without following links, and renamed. A link
with the target's name is replaced, and what it leads to stays as it is.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

PRIVATE_FILE_MODE = 0o600
SHARED_FILE_MODE = 0o644
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def replacing(
    path: Path, mode: int = PRIVATE_FILE_MODE, *, staged: Path | None = None
) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of `path` when the block ends, unless it raises.

    `staged` is its name until then; without one it is random. Raises OSError.
    """
    place = staged or path.with_name(f".{secrets.token_hex(8)}.new")
    descriptor = os.open(place, _NEW, PRIVATE_FILE_MODE)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), mode)
        place.replace(path)
    finally:
        place.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes, mode: int = PRIVATE_FILE_MODE) -> None:
    """Write a file that appears whole or not at all; OSError when it cannot be written."""
    with replacing(path, mode) as file:
        file.write(content)


def write_text(path: Path, text: str, mode: int = SHARED_FILE_MODE) -> None:
    """Write a text as UTF-8; it appears whole or not at all. Raises OSError."""
    write_bytes(path, text.encode(), mode)


def probe(folder: Path, size_bytes: int) -> None:
    """Write a file of that size into a folder and remove it; OSError where there is no space."""
    place = folder / f".{secrets.token_hex(8)}.probe"
    descriptor = os.open(place, _NEW, PRIVATE_FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(bytes(size_bytes))
    finally:
        place.unlink(missing_ok=True)


def open_new(path: Path, mode: int = PRIVATE_FILE_MODE) -> BinaryIO:
    """Open a new file under that very name; what has the name is removed. Raises OSError."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, _NEW, mode), "w+b")


@dataclass(frozen=True, slots=True)
class OpenFolder:
    """A folder that stays the same one, whatever is done to its path meanwhile."""

    descriptor: int

    @property
    def real_path(self) -> Path:
        """Where it is, with every link resolved. Raises OSError."""
        return Path(os.readlink(f"/proc/self/fd/{self.descriptor}"))  # noqa: PTH115 - a text

    def read_bytes(self, name: str, limit_bytes: int) -> bytes:
        """Return what a file in it holds, to a limit; OSError for a link and what is no file."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=self.descriptor), "rb") as file:
            return file.read(limit_bytes)

    def create(self, name: str, content: bytes, mode: int = SHARED_FILE_MODE) -> None:
        """Make a durable file that appears whole or not at all.

        Raises FileExistsError where anything has the name, and OSError.
        """
        staged = f".{secrets.token_hex(8)}.new"
        descriptor = os.open(staged, _NEW, PRIVATE_FILE_MODE, dir_fd=self.descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            self._name(staged, name)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(staged, dir_fd=self.descriptor)
        os.fsync(self.descriptor)

    def _name(self, staged: str, name: str) -> None:
        here = self.descriptor
        try:
            os.link(staged, name, src_dir_fd=here, dst_dir_fd=here)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # A file system without hard links has no name that is taken at once.
            if name in os.listdir(self.descriptor):  # noqa: PTH208 - a descriptor has no path
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from error
            os.rename(staged, name, src_dir_fd=here, dst_dir_fd=here)


@contextlib.contextmanager
def opened_folder(folder: Path) -> Iterator[OpenFolder]:
    """Yield the folder that a path leads to now, made when it is not there.

    Raises OSError, and never FileExistsError: a file in the folder's place is no folder.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield OpenFolder(descriptor)
    finally:
        os.close(descriptor)


PRIVATE_MODE = 0o700
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_ARRANGED = stat.S_ISVTX | stat.S_ISGID
"""Bits of a folder that somebody has set up for several users."""


def make_private(folder: Path) -> None:
    """Make a folder, with what is missing above it, for this user alone; one there stays so."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(mode=PRIVATE_MODE, exist_ok=True)


def write_private(path: Path, text: str, *, is_durable: bool = False) -> None:
    """Write a file into a private folder, whole or not at all; durable: there after a power cut."""
    make_private(path.parent)
    with replacing(path, SHARED_FILE_MODE) as file:
        file.write(text.encode())
        if is_durable:
            file.flush()
            os.fsync(file.fileno())
    if is_durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def keep_private(folder: Path) -> None:
    """Make a folder of ours for this user alone, and take others' rights from an old one."""
    make_private(folder)
    # Left as they are: a folder of another user, one that is set up for several, a mounted disk and
    # the home folder, which are more than a folder of ours whatever a variable says.
    status, place = folder.stat(), folder.resolve()
    is_own = status.st_uid == os.geteuid() and not status.st_mode & _ARRANGED
    if not (is_own and status.st_mode & _OTHERS):
        return
    is_more = place in (Path("~").expanduser().resolve(), Path("/")) or place.is_mount()
    if not is_more:
        # A disk that takes no modes, such as a share of another system's, is no reason to stop.
        with contextlib.suppress(OSError):
            folder.chmod(PRIVATE_MODE)
