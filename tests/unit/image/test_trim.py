"""What an engine's environment loses on its way into the image, and what it keeps."""

import struct
from pathlib import Path

import pytest

from sparkdeploy.image.inside import trim

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
