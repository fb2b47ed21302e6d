"""The FP8 tensors of the shared experts: which there must be, and whether those found are them."""

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from sparkdeploy.checkpoint.contents import (
    Located,
    ModelSizes,
    read_tensors,
    shared_expert_shapes,
    summary,
)
from sparkdeploy.checkpoint.ranges import RangeSource, read_remote_headers
from sparkdeploy.checkpoint.repo_files import printable
from sparkdeploy.checkpoint.safetensors import TensorInfo, read_at, read_header
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import open_regular

BLOCK = 128
WEIGHT_DTYPES = frozenset({"F8_E4M3"})
SCALE_DTYPES = frozenset({"BF16", "F32"})
WEIGHT_SUFFIX, SCALE_SUFFIX = ".weight", ".weight_scale_inv"
OWN_SUFFIXES: Mapping[str, str] = {WEIGHT_SUFFIX: ".fp8_weight", SCALE_SUFFIX: ".fp8_scale_inv"}
"""What the tensors are called beside the BF16 ones of the untouched download."""

STRETCH_BYTES = 32 << 10
"""Shorter than what one read from a connection brings, so that none goes unseen."""
RUN_ELEMENTS = 32
LARGEST_PART_OFF = 0.25
"""Of a run's elements; a few may differ where somebody rounded otherwise."""
_ULP = 1.05 / 8
"""Of a value's size, with room for scales that were rounded to 16 bits themselves."""
_SMALLEST_ULP = 1.05 / 512
"""Of a block's scale."""
_RELATED = re.compile(
    r"model\.(?:language_model\.)?layers\.\d+\.mlp\.shared_expert\.(?:gate|up|down)_proj\..+"
)


Shape = tuple[int, ...]


def expected_fp8(sizes: ModelSizes) -> dict[str, Shape]:
    """Return names and shapes: three weights a layer, each with its scales; 288 of 48 layers."""
    expected: dict[str, Shape] = {}
    for name, (rows, columns) in shared_expert_shapes(sizes):
        expected[name] = (rows, columns)
        expected[name.removesuffix(WEIGHT_SUFFIX) + SCALE_SUFFIX] = (
            -(-rows // BLOCK),
            -(-columns // BLOCK),
        )
    return expected


def expected_bytes(sizes: ModelSizes) -> int:
    expected = expected_fp8(sizes).items()
    return sum(math.prod(shape) * (1 if _is_weight(name) else 2) for name, shape in expected)


def own_name(name: str) -> str:
    module, _, last = name.rpartition(".")
    return module + OWN_SUFFIXES["." + last]


def _is_weight(name: str) -> bool:
    return name.endswith(WEIGHT_SUFFIX)


def find_fp8(
    source: RangeSource, sizes: ModelSizes, indexed: Mapping[str, str]
) -> dict[str, Located]:
    """Find every expected tensor by the headers of the files that `indexed` names."""
    expected = expected_fp8(sizes)
    files = sorted({file for name, file in indexed.items() if is_related(name)})
    found: dict[str, Located] = {}
    for file, header in read_remote_headers(source, files):
        for name, info in header.tensors.items():
            if name in found:
                raise CheckpointError(
                    f"{printable(name)} stands in both {found[name].file} and {file}."
                )
            if is_related(name):
                begin, end = header.data_offset + info.begin, header.data_offset + info.end
                found[name] = Located(file, replace(info, begin=begin, end=end))
    check_fp8(source.name, expected, {name: item.info for name, item in found.items()})
    return {name: found[name] for name in expected}


def check_fp8(
    place: str,
    expected: Mapping[str, Shape],
    found: Mapping[str, TensorInfo],
    hint: str = "use the FP8 repository of the same model, or mode online",
) -> None:
    """Hold related tensors against the expected ones; CheckpointError names every difference."""
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if name not in expected]
    lines = [f"missing: {summary(missing)}"] if missing else []
    lines += [f"extra: {summary(extra)}"] if extra else []
    for name, info in found.items():
        dtypes = WEIGHT_DTYPES if _is_weight(name) else SCALE_DTYPES
        if name in expected and (info.dtype not in dtypes or info.shape != expected[name]):
            lines.append(
                f"{name} is {printable(info.dtype)} {list(info.shape)}, expected "
                f"{' or '.join(sorted(dtypes))} {list(expected[name])}"
            )
    if lines:
        raise CheckpointError(
            f"{place} does not hold the FP8 shared experts of this model: {lines[0]}",
            detail="\n".join(lines[:50]),
            hint=hint,
        )


def is_related(name: str) -> bool:
    return _RELATED.fullmatch(name) is not None


def scale_of(own_name: str) -> str:
    """The name of a weight's scales, beside the untouched download."""
    return own_name.removesuffix(OWN_SUFFIXES[WEIGHT_SUFFIX]) + OWN_SUFFIXES[SCALE_SUFFIX]


def e4m3_values() -> list[float]:
    """The 127 values of e4m3 that are not negative, by their code; code 127 is not a number."""
    small = [mantissa * 2.0**-9 for mantissa in range(8)]
    large = [(1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 7) for code in range(8, 127)]
    return small + large


_POSITIVE = (*e4m3_values(), float("nan"))
VALUES_BY_CODE = (*_POSITIVE, *(-value for value in _POSITIVE))


def decode_bf16(content: bytes) -> tuple[float, ...]:
    """BF16 is the upper half of a float."""
    wide = bytearray(2 * len(content))
    wide[2::4], wide[3::4] = content[0::2], content[1::2]
    return struct.unpack(f"<{len(content) // 2}f", wide)


def unlike(shard: Path, model: Path) -> tuple[str, ...]:
    """Names of the shard's weights that are not those of the checkpoint in `model` in FP8.

    The hub states no hash of a part of a file, but rounding to e4m3 moves no 16-bit weight by more
    than the distance to the next value. Some elements of every stretch are looked at: wrong bytes
    are found, a single wrong bit is not. The plugin compares all elements while loading.
    """
    header = read_header(shard)
    originals = read_tensors(model)
    wrong = []
    with open_regular(shard) as file:
        for name, info in header.tensors.items():
            stem = name.removesuffix(OWN_SUFFIXES[WEIGHT_SUFFIX])
            exact = originals.get(stem + WEIGHT_SUFFIX) if stem != name else None
            if exact is None or (exact.info.dtype, exact.info.shape) != ("BF16", info.shape):
                # Nothing to compare with; whoever uses the shard says what is wrong with the model.
                continue
            stored = header.tensors[scale_of(name)]
            content = header.read(file, stored)
            if stored.dtype == "BF16":
                scales = decode_bf16(content)
            else:
                scales = struct.unpack(f"<{len(content) // 4}f", content)
            with open_regular(model / exact.file) as other:
                # Its header has been checked.
                data_begin = 8 + int.from_bytes(other.read(8), "little")
                places = (header.data_offset + info.begin, data_begin + exact.info.begin)
                if not _is_like(file, other, places, info.shape, scales):
                    wrong.append(name)
    return tuple(wrong)


def _is_like(
    file: BinaryIO,
    other: BinaryIO,
    places: tuple[int, int],
    shape: tuple[int, ...],
    scales: Sequence[float],
) -> bool:
    """Compare a run of elements in the middle of each stretch of one tensor in two files."""
    rows, columns = shape
    blocks = -(-columns // BLOCK)
    for begin in range(0, rows * columns, STRETCH_BYTES):
        length = min(STRETCH_BYTES, rows * columns - begin)
        index = begin + max(0, length - RUN_ELEMENTS) // 2
        count = min(length, RUN_ELEMENTS)
        codes = read_at(file, places[0] + index, count)
        values = decode_bf16(read_at(other, places[1] + 2 * index, 2 * count))
        off = 0
        for element, (code, value) in enumerate(zip(codes, values, strict=True), start=index):
            row, column = divmod(element, columns)
            scale = scales[row // BLOCK * blocks + column // BLOCK]
            # Up to the distance of neighbours; what is no number is never like one.
            most = abs(value) * _ULP + abs(scale) * _SMALLEST_ULP
            off += not abs(VALUES_BY_CODE[code] * scale - value) <= most
        if off > LARGEST_PART_OFF * count:
            return False
    return True
