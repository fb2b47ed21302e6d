"""How vLLM's TurboQuant lays a token's key and value of a head into a slot; standard library only.

A slot is `[key codes | key norm] [value codes | value scale | value zero]`, padded to an even
number of bytes. Codes are packed with the first dimension in the lowest bits; the three scalars are
FP16, lowest byte first. Keys of 8 bits are FP8 (E4M3) as they come and have no norm. Keys of 3 and
4 bits are indices of the nearest centroid of the unit key after a Hadamard rotation; read back,
they are made a unit vector again ("norm correction") before the norm is put back. Values are never
rotated: `zero + code x scale`. Read from vLLM's quantization/turboquant/config.py and its store
kernel, which are the same in 0.25.1 and 0.33.0.
"""

from dataclasses import dataclass

FP8_BITS = 8
SCALAR_BYTES = 2


@dataclass(frozen=True, slots=True)
class SlotFormat:
    """Where things stand in a slot, in bytes from its start."""

    key_bits: int
    value_bits: int
    head_dim: int

    @property
    def has_rotated_keys(self) -> bool:
        """Whether keys are centroids of a rotated unit vector; the query must be rotated too."""
        return self.key_bits != FP8_BITS

    @property
    def key_code_bytes(self) -> int:
        """Bytes of a key's codes; where keys are rotated, its norm follows."""
        return self.head_dim * self.key_bits // 8

    @property
    def value_offset(self) -> int:
        return self.key_code_bytes + SCALAR_BYTES * self.has_rotated_keys

    @property
    def scale_offset(self) -> int:
        return self.value_offset + self.head_dim * self.value_bits // 8

    @property
    def slot_bytes(self) -> int:
        used = self.scale_offset + 2 * SCALAR_BYTES
        return used + used % 2


BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
"""Bits of a key's and of a value's element, by what vLLM's --kv-cache-dtype calls the format."""


def slot_format(cache_dtype: str, head_dim: int) -> SlotFormat:
    key_bits, value_bits = BITS[cache_dtype]
    return SlotFormat(key_bits, value_bits, head_dim)
