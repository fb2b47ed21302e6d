"""Kernel architectures, read from fat binaries that the test makes."""

import struct
from collections import Counter
from pathlib import Path

import pytest

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
    rows = [
        (0, 0, 0),
        (1, start, len(section)),
        (len(name) + 2, start + len(section), len(names)),
    ]
    sections = b"".join(
        struct.pack("<IIQQQQ", name_at, 1, 0, 0, offset, size).ljust(64, b"\0")
        for name_at, offset, size in rows
    )
    return bytes(header) + section + names + sections


def kernels(tmp_path: Path, content: bytes) -> Counter[str]:
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    return Counter({str(kernel): count for kernel, count in kernels_of(path).items()})


def test_each_kernel_image_is_counted_under_the_compilers_word_for_it(tmp_path: Path) -> None:
    first = fatbin(entry(CUBIN, 120, 0x1208011), entry(CUBIN, 120, 0x1008011), entry(PTX, 80, 0))
    second = fatbin(entry(CUBIN, 90, 0x108011), entry(CUBIN, 120, 0x1208011))
    assert kernels(tmp_path, library(first + b"\0" * 8 + second)) == {
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
        ("sm_110f", False),
        ("compute_120", False),
    ],
)
def test_what_runs_on_a_spark_without_compiling(name: str, runs: bool) -> None:
    assert runs_on(name, 121) is runs
