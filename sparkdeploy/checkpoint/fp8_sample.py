"""Do FP8 tensors that came by range belong to the model? A look at some elements of every stretch.

The hub states no hash of a part of a file. What it should be is known all the same: the model has
the same weights at 16 bits, and rounding to e4m3 moves none by more than the distance to the next
value. Whole stretches of wrong bytes are found so; a single wrong bit is not. The plugin compares
all elements, block by block, while loading.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from sparkdeploy.checkpoint.contents import read_tensors
from sparkdeploy.checkpoint.fp8 import BLOCK, OWN_SUFFIXES, SCALE_SUFFIX, WEIGHT_SUFFIX
from sparkdeploy.checkpoint.safetensors import read_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from sparkdeploy.checkpoint.contents import Located
    from sparkdeploy.checkpoint.safetensors import Header, TensorInfo

STRETCH_BYTES = 32 << 10
"""Shorter than what one read from a connection brings, so that none goes unseen."""
RUN_ELEMENTS = 32
LARGEST_PART_OFF = 0.25
"""Of a run's elements; a few may differ where somebody rounded otherwise."""
_ULP = 1.05 / 8
"""Of a value's size, with room for scales that were rounded to 16 bits themselves."""
_SMALLEST_ULP = 1.05 / 512
"""Of a block's scale."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A module's weight in FP8 with its scales, and at 16 bits."""

    weight: TensorInfo
    scales: tuple[float, ...]
    exact: Located


def unlike(shard: Path, model: Path) -> tuple[str, ...]:
    """Names of the shard's weights that are not those of the checkpoint in `model` in FP8."""
    header = read_header(shard)
    originals = read_tensors(model)
    wrong = []
    with shard.open("rb") as file:
        for pair in _pairs(header, file, originals):
            path = model / pair.exact.file
            with path.open("rb") as exact:
                data_begin = _data_begin(exact)
                if not _is_like(pair, file, header.data_offset, exact, data_begin):
                    wrong.append(pair.weight.name)
    return tuple(wrong)


def _data_begin(file: BinaryIO) -> int:
    """Where the data of a safetensors file begins whose header has been checked."""
    return 8 + int.from_bytes(_read_at(file, 0, 8), "little")


def _pairs(header: Header, file: BinaryIO, originals: Mapping[str, Located]) -> Iterator[_Pair]:
    for name, info in header.tensors.items():
        stem = name.removesuffix(OWN_SUFFIXES[WEIGHT_SUFFIX])
        if stem == name:
            continue
        exact = originals.get(stem + WEIGHT_SUFFIX)
        if exact is None or (exact.info.dtype, exact.info.shape) != ("BF16", info.shape):
            # Nothing to compare with; whoever uses the shard says what is wrong with the model.
            continue
        scales = header.tensors[stem + OWN_SUFFIXES[SCALE_SUFFIX]]
        content = _read_at(file, header.data_offset + scales.begin, scales.size_bytes)
        values = decode_bf16(content) if scales.dtype == "BF16" else _decode_f32(content)
        yield _Pair(info, values, exact)


def _is_like(
    pair: _Pair, file: BinaryIO, data_begin: int, exact: BinaryIO, exact_begin: int
) -> bool:
    for index in _runs(pair.weight.size_bytes):
        codes = _read_at(file, data_begin + pair.weight.begin + index, RUN_ELEMENTS)
        at = exact_begin + pair.exact.info.begin + 2 * index
        wanted = decode_bf16(_read_at(exact, at, 2 * len(codes)))
        off = sum(
            not _is_rounded(VALUES_BY_CODE[code] * scale, value, scale)
            for code, value, scale in zip(codes, wanted, _scales(pair, index), strict=False)
        )
        if off > LARGEST_PART_OFF * len(codes):
            return False
    return True


def _runs(size_bytes: int) -> Iterator[int]:
    """Where each stretch's run begins, in elements, which are bytes: in its middle."""
    for begin in range(0, size_bytes, STRETCH_BYTES):
        length = min(STRETCH_BYTES, size_bytes - begin)
        yield begin + max(0, length - RUN_ELEMENTS) // 2


def _scales(pair: _Pair, index: int) -> Iterator[float]:
    columns = pair.weight.shape[1]
    blocks = -(-columns // BLOCK)
    for element in range(index, index + RUN_ELEMENTS):
        row, column = divmod(element, columns)
        place = row // BLOCK * blocks + column // BLOCK
        # The last run of a weight may be shorter than a run is.
        yield pair.scales[min(place, len(pair.scales) - 1)]


def _is_rounded(value: float, exact: float, scale: float) -> bool:
    """Whether one is the other up to the distance of neighbours; never for what is no number."""
    return abs(value - exact) <= abs(exact) * _ULP + abs(scale) * _SMALLEST_ULP


def _decode_f32(content: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(content) // 4}f", content)


def _read_at(file: BinaryIO, begin: int, size_bytes: int) -> bytes:
    file.seek(begin)
    return file.read(size_bytes)


def e4m3_values() -> list[float]:
    """The 127 values of e4m3 that are not negative, by their code; code 127 is not a number."""
    small = [mantissa * 2.0**-9 for mantissa in range(8)]
    large = [(1 + (code & 7) / 8) * 2.0 ** ((code >> 3) - 7) for code in range(8, 127)]
    return small + large


def decode_bf16(content: bytes) -> tuple[float, ...]:
    """BF16 is the upper half of a float."""
    wide = bytearray(2 * len(content))
    wide[2::4], wide[3::4] = content[0::2], content[1::2]
    return struct.unpack(f"<{len(content) // 2}f", wide)


_POSITIVE = (*e4m3_values(), float("nan"))
VALUES_BY_CODE = (*_POSITIVE, *(-value for value in _POSITIVE))
"""Every code's value; the upper half are the negative ones."""
