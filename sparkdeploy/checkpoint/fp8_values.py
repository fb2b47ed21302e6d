"""The numbers behind the bytes of FP8 (e4m3) and BF16 tensors."""

from __future__ import annotations

import struct


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
