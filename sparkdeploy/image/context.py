"""The files that travel to the Docker Engine with a build, as a tar that is always the same."""

import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sparkdeploy.stored_json import open_regular

CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class ContextFile:
    path: str
    content: bytes | Path
    mode: int = 0o644

    def digest(self) -> str:
        digest = hashlib.sha256(f"{self.mode:o}\n".encode())
        with self.open() as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()

    def open(self) -> IO[bytes]:
        if isinstance(self.content, bytes):
            return io.BytesIO(self.content)
        return open_regular(self.content)


def write_tar(files: Iterable[ContextFile], out: IO[bytes]) -> None:
    """Write a tar with sorted names, no owner and no times; large files are streamed from disk."""
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in sorted(files, key=lambda file: file.path):
            entry = tarfile.TarInfo(file.path)
            entry.mode = file.mode
            with file.open() as stream:
                entry.size = stream.seek(0, io.SEEK_END)
                stream.seek(0)
                archive.addfile(entry, stream)
