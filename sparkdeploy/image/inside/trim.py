"""Leaves out of an environment what serving on its GPUs never loads; says what it was.

Runs inside a throw-away half of a build with nothing but the standard library, so what goes here
is in no layer of the image. Two kinds of files go. Static libraries: only a linker of programs
reads them; those beside nvcc stay, it links with them. And the GPU programs that FlashInfer ships
for other GPUs: a program of one major compute capability does not load on another.
"""

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

_ELF_MAGIC = b"\x7fELF"
_ABI_VERSION_AT, _FLAGS_AT, _HEADER_BYTES = 8, 0x30, 0x40
_FLAGS_MOVED_IN_ABI = 8
"""Up to ABI 7 the lowest byte of e_flags is the capability, from 8 on the next one: in
flashinfer-cubin 0.6.13 that agrees with the name of each of the 15,653 cubins that have one."""


def capability_of(header: bytes) -> int | None:
    """Return the compute capability of a cubin, 121 for 12.1; None when this is no cubin.

    `header` is the file's first 64 bytes.
    """
    if len(header) < _HEADER_BYTES or header[:4] != _ELF_MAGIC:
        return None
    (flags,) = struct.unpack_from("<I", header, _FLAGS_AT)
    shift = 8 if header[_ABI_VERSION_AT] >= _FLAGS_MOVED_IN_ABI else 0
    return (int(flags) >> shift) & 0xFF


def static_libraries(site: Path) -> Iterator[Path]:
    """Yield the static libraries of a site-packages folder, but for those that nvcc links with."""
    for path in site.rglob("*.a"):
        if not path.match("nvidia/cu*/lib/*.a"):
            yield path


def foreign_cubins(site: Path, capability: int) -> Iterator[Path]:
    """Yield FlashInfer's cubins for GPUs of another major capability; an unknown file stays."""
    for path in (site / "flashinfer_cubin").rglob("*.cubin"):
        with path.open("rb") as stream:
            found = capability_of(stream.read(_HEADER_BYTES))
        if found is not None and found // 10 != capability // 10:
            yield path


def remove(kind: str, paths: list[Path]) -> str:
    """Remove files; return how many and how much that was."""
    size_bytes = sum(path.lstat().st_size for path in paths)
    for path in paths:
        path.unlink()
    return f"left out: {len(paths)} {kind}, {size_bytes / 1e6:.0f} MB"


def main(venv: str, capability: str) -> None:
    """Trim a virtual environment for GPUs of a capability: `trim.py /opt/venv 121`."""
    for site in Path(venv).glob("lib/python3.*/site-packages"):
        lines = (
            remove("static libraries", list(static_libraries(site))),
            remove("cubins for other GPUs", list(foreign_cubins(site, int(capability)))),
        )
        sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
