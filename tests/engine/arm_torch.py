"""torch for the aarch64 CPU engine, made of the build for CUDA that any package index has.

PyTorch's own index alone has `+cpu` builds. The build for CUDA computes on a CPU, too,
once the libraries that it is linked with are beside it. Two things are added:

- `sbgemm_`, a product of BF16 matrices, which vLLM calls and the `+cpu` build's OpenBLAS has.
- A description of an ARM processor (`emulated.CPUINFO` says why).
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.engine.emulated import CPUINFO

RELEASE = "2.13.0"
INFO, CPU_INFO = (f"torch-{it}.dist-info" for it in (RELEASE, f"{RELEASE}+cpu"))
LINKED = re.compile(
    r"nvidia/\w+/lib/lib(cublas|cublasLt|cudart|cudnn|cufft|cufile|cupti|curand|cusparse|cusparseLt"
    r"|nccl|nvJitLink|nvrtc|nvshmem_host)\.so\.\d+"
)
"""What torch is linked with, and what that is linked with: 2.1 of CUDA's 2.9 GB."""
OF_TORCH = re.compile(r"(torch|torchgen|functorch)/.*|" + re.escape(INFO) + "/(?!RECORD).*")
CPUINFO_PATH, PATH_INSTEAD = b"/proc/cpuinfo", b"/opt/venv/cpu"
"""As long as each other: torch's libraries have the path in their data."""
SBGEMM = """
typedef unsigned short bf16;
static float wide(bf16 x) {
  union { unsigned u; float f; } it = { (unsigned)x << 16 };
  return it.f;
}
void sbgemm_(const char *ta, const char *tb, const int *m, const int *n, const int *k,
             const float *alpha, const bf16 *a, const int *lda, const bf16 *b, const int *ldb,
             const float *beta, float *c, const int *ldc) {
  long ai = (*ta | 32) == 'n' ? 1 : *lda, ap = (*ta | 32) == 'n' ? *lda : 1;
  long bp = (*tb | 32) == 'n' ? 1 : *ldb, bj = (*tb | 32) == 'n' ? *ldb : 1;
  for (long j = 0; j < *n; j++) for (long i = 0; i < *m; i++) {
    float sum = 0, *out = c + i + j * *ldc;
    for (long p = 0; p < *k; p++) sum += wide(a[i * ai + p * ap]) * wide(b[p * bp + j * bj]);
    *out = *alpha * sum + (*beta == 0 ? 0 : *beta * *out);
  }
}
"""
LOADS_SBGEMM = b"""
ctypes.CDLL(os.path.join(os.path.dirname(__file__), "lib", "libsbgemm.so"), ctypes.RTLD_GLOBAL)
"""


def cpu_wheel(folder: Path) -> Path:
    """Write a wheel that calls itself `+cpu` into an empty folder; return its own folder."""
    unpacked, sbgemm, wheels = (folder / name for name in ("unpacked", "libsbgemm.so", "wheels"))
    _unpack(unpacked)
    _compile(SBGEMM, sbgemm)
    wheels.mkdir()
    name = f"torch-{RELEASE}+cpu-cp311-cp311-manylinux_2_28_aarch64.whl"
    _pack(_contents(unpacked, sbgemm), wheels / name)
    shutil.rmtree(unpacked)
    return wheels


def _unpack(target: Path) -> None:
    subprocess.run(
        (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-cache",
         "--only-binary", ":all:", "--python-platform", "aarch64-manylinux_2_28",
         "--python-version", "3.11", "--target", target, f"torch=={RELEASE}"),
        check=True,
    )  # fmt: skip


def _compile(source: str, library: Path) -> None:
    subprocess.run(
        ("aarch64-linux-gnu-gcc", "-O2", "-nostdlib", "-shared", "-fPIC", "-o", library,
         "-x", "c", "-"),
        input=source, text=True, check=True,
    )  # fmt: skip


def _contents(unpacked: Path, sbgemm: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what the wheel has, each file with its name."""
    for path in sorted(unpacked.rglob("*")):
        name = path.relative_to(unpacked).as_posix()
        if path.is_file() and (OF_TORCH.fullmatch(name) or LINKED.fullmatch(name)):
            yield name.replace(INFO, CPU_INFO), _changed(name, path.read_bytes())
    yield "torch/lib/libsbgemm.so", sbgemm.read_bytes()
    # Goes to the top of the environment that the wheel is installed in: PATH_INSTEAD.
    yield f"torch-{RELEASE}+cpu.data/data/cpu", CPUINFO.encode()


def _changed(name: str, content: bytes) -> bytes:
    if name.startswith("torch/lib/"):
        return content.replace(CPUINFO_PATH, PATH_INSTEAD)
    if name == "torch/__init__.py":
        return content + LOADS_SBGEMM
    if name == "torch/version.py":
        return content.replace(b"+cu130", b"+cpu").replace(b"= '13.0'", b"= None")
    if name == f"{INFO}/METADATA":
        return content.replace(b"\nVersion: 2.13.0\n", b"\nVersion: 2.13.0+cpu\n", 1)
    return content


def _pack(contents: Iterator[tuple[str, bytes]], target: Path) -> None:
    record = [f"{CPU_INFO}/RECORD,,\n"]
    with zipfile.ZipFile(target, "w") as wheel:
        for name, content in contents:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode()
            record.append(f"{name},sha256={digest.rstrip('=')},{len(content)}\n")
            entry = zipfile.ZipInfo(name)
            entry.external_attr = 0o755 << 16
            wheel.writestr(entry, content)
        wheel.writestr(f"{CPU_INFO}/RECORD", "".join(record))
