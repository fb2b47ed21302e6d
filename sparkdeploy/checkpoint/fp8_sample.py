"""Do FP8 tensors that came by range belong to the model? A look at some elements of every stretch.

The hub states no hash of a part of a file. What it should be is known all the same: the model has
the same weights at 16 bits, and rounding to e4m3 moves none by more than the distance to the next
value. Whole stretches of wrong bytes are found so; a single wrong bit is not. The plugin compares
all elements, block by block, while loading.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO

from sparkdeploy.checkpoint.contents import read_tensors
from sparkdeploy.checkpoint.fp8 import BLOCK, OWN_SUFFIXES, SCALE_SUFFIX, WEIGHT_SUFFIX
from sparkdeploy.checkpoint.safetensors import read_header

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STRETCH_BYTES = 32 << 10
"""Shorter than what one read from a connection brings, so that none goes unseen."""
RUN_ELEMENTS = 32
LARGEST_PART_OFF = 0.25
"""Of a run's elements; a few may differ where somebody rounded otherwise."""
_ULP = 1.05 / 8
"""Of a value's size, with room for scales that were rounded to 16 bits themselves."""
_SMALLEST_ULP = 1.05 / 512
"""Of a block's scale."""


def e4m3_values() -> list[float]:
    """The 127 values of e4m3 that are not negative, by their code; code 127 is not a number."""
    small = [mantissa * 2.0**-9 for mantissa in range(8)]
    large = [(1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 7) for code in range(8, 127)]
    return small + large


_POSITIVE = (*e4m3_values(), float("nan"))
VALUES_BY_CODE = (*_POSITIVE, *(-value for value in _POSITIVE))
"""Every code's value; the upper half are the negative ones."""


def decode_bf16(content: bytes) -> tuple[float, ...]:
    """BF16 is the upper half of a float."""
    wide = bytearray(2 * len(content))
    wide[2::4], wide[3::4] = content[0::2], content[1::2]
    return struct.unpack(f"<{len(content) // 2}f", wide)


def unlike(shard: Path, model: Path) -> tuple[str, ...]:
    """Names of the shard's weights that are not those of the checkpoint in `model` in FP8."""
    header = read_header(shard)
    originals = read_tensors(model)
    wrong = []
    with shard.open("rb") as file:
        for name, info in header.tensors.items():
            stem = name.removesuffix(OWN_SUFFIXES[WEIGHT_SUFFIX])
            exact = originals.get(stem + WEIGHT_SUFFIX) if stem != name else None
            if exact is None or (exact.info.dtype, exact.info.shape) != ("BF16", info.shape):
                # Nothing to compare with; whoever uses the shard says what is wrong with the model.
                continue
            stored = header.tensors[stem + OWN_SUFFIXES[SCALE_SUFFIX]]
            content = _read_at(file, header.data_offset + stored.begin, stored.size_bytes)
            if stored.dtype == "BF16":
                scales = decode_bf16(content)
            else:
                scales = struct.unpack(f"<{len(content) // 4}f", content)
            with (model / exact.file).open("rb") as other:
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
    """Compare a run of elements in the middle of each stretch; a code is one byte.

    `places` are where the tensor begins in the file of its codes and in the other one.
    """
    rows, columns = shape
    blocks = -(-columns // BLOCK)
    for begin in range(0, rows * columns, STRETCH_BYTES):
        length = min(STRETCH_BYTES, rows * columns - begin)
        index = begin + max(0, length - RUN_ELEMENTS) // 2
        count = min(length, RUN_ELEMENTS)
        codes = _read_at(file, places[0] + index, count)
        values = decode_bf16(_read_at(other, places[1] + 2 * index, 2 * count))
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


def _read_at(file: BinaryIO, begin: int, size_bytes: int) -> bytes:
    file.seek(begin)
    return file.read(size_bytes)
