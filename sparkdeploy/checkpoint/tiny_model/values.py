"""Tensor contents that depend on a seed and a tensor's name only, made without torch or numpy."""

import hashlib
import math
import random
import struct
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

_INT4_STD = math.sqrt(sum(value * value for value in range(-7, 8)) / 16)
"""Standard deviation of the INT4 values below: uniform, with -8 replaced by 0."""

# A nibble n stands for n - 8. Without its only value that has no opposite (-8) the weights have a
# mean of zero, so that the layers have no common offset and the twin's text varies.
_NIBBLE = bytes(8 if nibble == 0 else nibble for nibble in range(16))
_SYMMETRIC_NIBBLES = bytes(_NIBBLE[byte >> 4] << 4 | _NIBBLE[byte & 15] for byte in range(256))


CHUNK_BYTES = 2**26


def normal_bf16(seed: int, name: str, *, count: int, std: float, mean: float = 0.0) -> bytes:
    """`count` BF16 values of a normal distribution with 256 levels."""
    return _translated(_random_bytes(seed, name, count), _normal_tables(std, mean))


def signs_bf16(seed: int, name: str, *, count: int, size: float) -> bytes:
    """`count` BF16 values of plus or minus `size`; the signs do not depend on the size."""
    tables = _tables([bf16(-size)] * 128 + [bf16(size)] * 128)
    return _translated(_random_bytes(seed, name, count), tables)


def uniform_f32(seed: int, name: str, *, count: int, low: float, high: float) -> bytes:
    """`count` F32 values between `low` and `high`."""
    step = (high - low) / 255
    picks = _random_bytes(seed, name, count)
    return struct.pack(f"<{count}f", *(low + step * pick for pick in picks))


def int4_words(seed: int, name: str, *, count: int) -> bytes:
    """`count` I32 words of eight INT4 values each, stored with an offset of 8, mean zero."""
    return _random_bytes(seed, name, 4 * count).translate(_SYMMETRIC_NIBBLES)


def int4_scales_f16(seed: int, name: str, *, count: int, std: float) -> bytes:
    """`count` F16 scales that give INT4 weights a standard deviation of about `std`."""
    levels = [struct.pack("<e", std / _INT4_STD * (0.75 + pick / 510)) for pick in range(256)]
    return _translated(_random_bytes(seed, name, count), _tables(levels))


def bf16(value: float) -> bytes:
    """The BF16 nearest to `value` (ties away from zero)."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    return struct.pack("<H", min(bits + 0x8000, 0xFFFF_FFFF) >> 16)


def _random_bytes(seed: int, name: str, count: int) -> bytes:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    # Not for secrets: the same seed and name must give the same bytes on every machine.
    source = random.Random(int.from_bytes(digest, "little"))  # noqa: S311
    # randbytes fails from 2^31 bits on, and a head of the real size has more.
    sizes = (min(CHUNK_BYTES, count - start) for start in range(0, count, CHUNK_BYTES))
    return b"".join(source.randbytes(size) for size in sizes)


@lru_cache(maxsize=256)
def _normal_tables(std: float, mean: float) -> tuple[bytes, bytes]:
    normal = NormalDist()
    return _tables([bf16(mean + std * normal.inv_cdf((pick + 0.5) / 256)) for pick in range(256)])


def _tables(levels: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The lower and the upper bytes of 256 values of two bytes each."""
    return bytes(level[0] for level in levels), bytes(level[1] for level in levels)


def _translated(picks: bytes, tables: tuple[bytes, bytes]) -> bytes:
    """For each byte of `picks` the two bytes that the tables have in its place."""
    content = bytearray(2 * len(picks))
    content[0::2], content[1::2] = (picks.translate(table) for table in tables)
    return bytes(content)
