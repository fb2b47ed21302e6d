"""Blank the machine code for other GPUs inside shared objects, so that they compress well.

A fat binary's entries keep their headers and sizes; only bodies that the driver would not choose
on the wanted architecture become zeros. Run on copies: the result serves one architecture.
"""

import struct
import sys
from pathlib import Path

_CONTAINER_MAGIC = b"\x50\xed\x55\xba"
_CONTAINER_HEADER = struct.Struct("<IHHQ")
_ENTRY_HEADER = struct.Struct("<HHIQ")
_ARCH_OFFSET = 28
_PTX, _CUBIN = 1, 2


def slim(path: Path, arch: int) -> tuple[int, int]:
    """Blank every entry of `path` that a card of `arch` (90 for 9.0) cannot run.

    Returns (bytes blanked, bytes of code kept).
    """
    content = bytearray(path.read_bytes())
    blanked = kept = at = 0
    while (at := content.find(_CONTAINER_MAGIC, at)) >= 0:
        _, _, header_size, size = _CONTAINER_HEADER.unpack_from(content, at)
        entry, end = at + header_size, at + header_size + size
        while entry < end:
            kind, _, entry_header, entry_size = _ENTRY_HEADER.unpack_from(content, entry)
            (entry_arch,) = struct.unpack_from("<I", content, entry + _ARCH_OFFSET)
            body = entry + entry_header
            if _runs_on(arch, kind, entry_arch & 0xFFF):
                kept += entry_size
            else:
                content[body : body + entry_size] = bytes(entry_size)
                blanked += entry_size
            entry = body + entry_size
        at += _CONTAINER_HEADER.size
    if blanked:
        path.write_bytes(content)
    return blanked, kept


def _runs_on(arch: int, kind: int, entry_arch: int) -> bool:
    if kind == _PTX:
        return entry_arch <= arch
    return kind != _CUBIN or (entry_arch // 10 == arch // 10 and entry_arch <= arch)


if __name__ == "__main__":
    for name in sys.argv[2:]:
        sizes = slim(Path(name), int(sys.argv[1]))
        sys.stderr.write(f"{name}: blanked {sizes[0]:,}, kept {sizes[1]:,} bytes\n")
