"""A file on its way to this disk: its bytes are counted, hashed, and bounded as they come."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from sparkdeploy.errors import CheckpointError

if TYPE_CHECKING:
    import hashlib
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from sparkdeploy.checkpoint.repo_files import RepoFile

HASH_BYTES = 1 << 20


class WrongContentError(CheckpointError):
    """A file that is not what the hub's list says; another try may bring the right one."""


class StoppedError(Exception):
    """The files beside it were given up, and so is this one; what has come of it is kept."""


@dataclass(slots=True)
class Arriving:
    """A file and what has come of it. Whoever moves its bytes learns here when to stop."""

    file: RepoFile
    stop: threading.Event
    count: Callable[[int], None]
    """Gets the bytes that came since; a negative number takes back what has to come again."""
    came_bytes: int = 0

    def add(self, more_bytes: int) -> None:
        """Raises StoppedError, and WrongContentError when more comes than there is."""
        if self.stop.is_set():
            raise StoppedError
        if self.came_bytes + more_bytes > self.file.size_bytes:
            raise WrongContentError(
                f"{self.file.name} has more than the {self.file.size_bytes} bytes that the hub "
                "states."
            )
        self.came_bytes += more_bytes
        self.count(more_bytes)

    def begin_anew(self) -> None:
        """Take back what was counted; StoppedError instead of another try."""
        self.count(-self.came_bytes)
        self.came_bytes = 0
        self.add(0)

    def check(self, size_bytes: int, hash_hex: str) -> None:
        """Raise WrongContentError for another size or hash than the hub states."""
        file = self.file
        if size_bytes != file.size_bytes:
            raise WrongContentError(
                f"{file.name} has {size_bytes} bytes, and the hub states {file.size_bytes}."
            )
        if hash_hex != file.blob_name:
            raise WrongContentError(
                f"{file.name} is not the file the hub describes: its hash differs."
            )

    def check_here(self, path: Path) -> None:
        """Read a file of this disk, and check it; what was not counted yet is counted."""
        if not stat.S_ISREG(path.stat().st_mode):
            # A pipe would be waited for until somebody writes to it.
            raise WrongContentError(f"{self.file.name} is no file.")
        with path.open("rb") as content:
            digest = self.hash_of(content)
            self.check(content.tell(), digest.hexdigest())

    def hash_of(self, content: IO[bytes]) -> hashlib._Hash:
        """Return the hash of an open file, read to its end; what was not counted yet is counted."""
        digest, read_bytes = self.file.new_hash(), 0
        content.seek(0)
        while chunk := content.read(HASH_BYTES):
            read_bytes += len(chunk)
            self.add(max(0, read_bytes - self.came_bytes))
            digest.update(chunk)
        return digest
