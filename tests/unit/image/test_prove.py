"""What is found inside an engine's image: kernels, programs to trim, whether it can be adopted."""

import struct
import sys
from collections import Counter
from pathlib import Path

import pytest

from sparkdeploy.image.inside import adopt, prove, trim
from sparkdeploy.image.inside.adopt import refusal
from sparkdeploy.image.inside.prove import kernels_of, runs_on

PTX, CUBIN = 1, 2
ENTRY_BYTES = 64


def entry(kind: int, arch: int, flags: int, payload: bytes = b"x" * 24) -> bytes:
    head = struct.pack("<HHIQ", kind, 0x101, ENTRY_BYTES, len(payload))
    head = head.ljust(0x1C, b"\0") + struct.pack("<I", arch)
    head = head.ljust(0x28, b"\0") + struct.pack("<Q", flags)
    return head.ljust(ENTRY_BYTES, b"\0") + payload


def fatbin(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def library(section: bytes, name: str = ".nv_fatbin") -> bytes:
    """An ELF file with a null section, the given one and the names of both."""
    names = b"\0" + name.encode() + b"\0.shstrtab\0"
    start = 64
    table = start + len(section) + len(names)
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 0x28, table)
    struct.pack_into("<HHH", header, 0x3A, 64, 3, 2)
    rows = [(0, 0, 0), (1, start, len(section)), (len(name) + 2, start + len(section), len(names))]
    sections = b"".join(
        struct.pack("<IIQQQQ", name_at, 1, 0, 0, offset, size).ljust(64, b"\0")
        for name_at, offset, size in rows
    )
    return bytes(header) + section + names + sections


def kernels(tmp_path: Path, content: bytes) -> Counter[str]:
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    return Counter({str(kernel): count for kernel, count in kernels_of(path).items()})


@pytest.mark.parametrize("section", [".nv_fatbin", "__nv_relfatbin"])
def test_each_kernel_image_is_counted_under_the_compilers_word_for_it(
    tmp_path: Path, section: str
) -> None:
    first = fatbin(entry(CUBIN, 120, 0x1208011), entry(CUBIN, 120, 0x1008011), entry(PTX, 80, 0))
    second = fatbin(entry(CUBIN, 90, 0x108011), entry(CUBIN, 120, 0x1208011))
    assert kernels(tmp_path, library(first + b"\0" * 8 + second, section)) == {
        "sm_120f": 2,
        "sm_120": 1,
        "sm_90a": 1,
        "compute_80": 1,
    }


@pytest.mark.parametrize("content", [library(fatbin(), ".text"), b"#!/bin/sh\n", b""])
def test_a_file_without_kernels_has_none(tmp_path: Path, content: bytes) -> None:
    assert kernels(tmp_path, content) == {}


def test_an_unknown_layout_is_an_error_and_not_a_guess(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown fat binary entry of kind 7"):
        kernels(tmp_path, library(fatbin(entry(7, 120, 0))))


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("sm_120", True),
        ("sm_120f", True),
        ("sm_121a", True),
        ("sm_120a", False),
        ("sm_122", False),
        ("sm_110f", False),
        ("compute_120", False),
    ],
)
def test_what_runs_on_a_spark_without_compiling(name: str, runs: bool) -> None:
    assert runs_on(name, 121) is runs


@pytest.mark.parametrize("vllm", ["0.25.1", "0.25.1+cu130", "0.25.1.dev0+g1234"])
def test_an_image_of_the_engines_release_fits(vllm: str) -> None:
    assert refusal("0.25.1", "cuda", vllm=vllm, torch_cuda="13.0") is None


@pytest.mark.parametrize(
    ("device", "vllm", "torch_cuda", "words"),
    [
        ("cuda", "0.33.0", "13.0", "it has vLLM 0.33.0, and the engine says 0.25.1"),
        ("cuda", "0.25.10", "13.0", "it has vLLM 0.25.10"),
        ("cuda", "dev", "13.0", "it has vLLM dev"),
        ("cuda", None, "13.0", "no version"),
        ("cuda", "0.25.1", None, "its torch is a CPU build"),
    ],
)
def test_any_other_is_refused_with_the_reason(
    device: str, vllm: str | None, torch_cuda: str | None, words: str
) -> None:
    assert words in (refusal("0.25.1", device, vllm=vllm, torch_cuda=torch_cuda) or "")


def test_a_cpu_build_fits_an_engine_that_says_so() -> None:
    assert refusal("0.32.0", "cpu", vllm="0.32.0+cpu", torch_cuda=None) is None


def test_a_python_that_is_too_old_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    told = refusal("any", "cuda", vllm="0.9.0", torch_cuda="12.8")
    assert told == "its Python is 3.9, older than 3.10"
    # It would fail at `str | None` before it says anything.
    assert refusal.__annotations__["return"] == "str | None"


def test_the_cuda_of_torch_is_read_from_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for text, cuda in (
        ("cuda: Optional[str] = '13.0'\nhip = '7'\n", "13.0"),
        ('cuda = "12.8"\n', "12.8"),
        ("cuda: Optional[str] = None\ncuda_of_another = '1'\n", None),
    ):
        (tmp_path / "torch" / "version.py").write_text(text)
        assert (adopt._torch_cuda(), prove.torch_cuda()) == (cuda, cuda)


SITE = "lib/python3.12/site-packages"


def cubin(capability: int, *, abi: int = 8, flags: int = 0x0600_0002) -> bytes:
    """The head of a GPU program as nvcc writes it, and some code."""
    header = bytearray(64)
    header[:4] = b"\x7fELF"
    header[7], header[8] = 0x41, abi
    struct.pack_into("<I", header, 0x30, flags | (capability << (8 if abi >= 8 else 0)))
    return bytes(header) + b"code"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment with one file of each kind that matters."""
    files = {
        "xgrammar/lib/libxgrammar.a": b"!<arch>",
        "triton/backends/nvidia/lib/cupti/libcupti_static.a": b"!<arch>",
        "nvidia/cu13/lib/libcudart_static.a": b"!<arch>",
        "nvidia/cu13/lib/libcudart.so.13": b"\x7fELF",
        "flashinfer_cubin/cubins/x/fmha/fmhaSm100f.cubin": cubin(100),
        "flashinfer_cubin/cubins/x/fmha/fmhaSm103a.cubin": cubin(103),
        "flashinfer_cubin/cubins/x/gemm/kernel.without.a.name.cubin": cubin(100),
        "flashinfer_cubin/cubins/x/gemm/kernelSm120f.cubin": cubin(120),
        "flashinfer_cubin/cubins/x/gemm/kernelSm121a.cubin": cubin(121),
        "flashinfer_cubin/cubins/x/gemm/unknown.cubin": b"not a GPU program",
        "flashinfer_cubin/cubins/x/fmha/include/flashInferMetaInfo.h": b"// names",
        "elsewhere/fmhaSm100f.cubin": cubin(100),
    }
    for name, content in files.items():
        path = tmp_path / SITE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


def test_what_no_spark_loads_is_left_out(venv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trim.main(str(venv), "121")
    kept = {path.relative_to(venv / SITE).as_posix() for path in venv.rglob("*") if path.is_file()}
    assert kept == {
        "nvidia/cu13/lib/libcudart_static.a",
        "nvidia/cu13/lib/libcudart.so.13",
        "flashinfer_cubin/cubins/x/gemm/kernelSm120f.cubin",
        "flashinfer_cubin/cubins/x/gemm/kernelSm121a.cubin",
        "flashinfer_cubin/cubins/x/gemm/unknown.cubin",
        "flashinfer_cubin/cubins/x/fmha/include/flashInferMetaInfo.h",
        "elsewhere/fmhaSm100f.cubin",
    }
    said = capsys.readouterr().out
    assert "left out: 2 static libraries" in said
    assert "left out: 3 cubins for other GPUs" in said


def test_an_engine_without_flashinfers_programs_is_trimmed_too(tmp_path: Path) -> None:
    (tmp_path / SITE).mkdir(parents=True)
    trim.main(str(tmp_path), "121")


@pytest.mark.parametrize(
    ("header", "capability"),
    [
        (cubin(100), 100),
        (cubin(121, flags=0x1000_000C), 121),
        (cubin(90, abi=7, flags=0x0055_0500), 90),
        (b"\x7fELF", None),
        (b"x" * 64, None),
    ],
)
def test_a_programs_capability_is_read_from_its_header(
    header: bytes, capability: int | None
) -> None:
    assert trim.capability_of(header[:64]) == capability
