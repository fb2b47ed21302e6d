"""How fast attention reads its KV cache: a share of the memory bandwidth, by the cache's format.

A packed format costs instructions for each byte, so a kernel may be held up by the multiprocessors
before it has used the bandwidth. How much of it is reached was measured on one machine. Another one
whose multiprocessors get fewer bytes a clock has more instructions for each byte to spare.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkdeploy.recipe.document import read_document

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sparkdeploy.estimate.hardware import Hardware

PLAIN = "auto"
"""The format that others are held against: the model's own 16 bits."""
PACKED = "turboquant_"
ROWS_AT_ONCE = 16
"""Query rows of a KV head that the plugin's kernel meets with codes once unpacked: query heads that
share it, times the tokens that are verified. More rows have the codes unpacked again."""
_SAME_AS_PLAIN = frozenset({"bfloat16", "float16", "half"})


@dataclass(frozen=True, slots=True)
class AttentionPace:
    """How attention goes over a cache of one format."""

    share: float
    """Of the memory bandwidth."""
    fixed_s: float
    """What one layer takes in one pass beside reading, more than with a 16-bit cache."""


@dataclass(frozen=True, slots=True)
class AttentionTable:
    """What was measured on one machine, by format, and what follows for others."""

    measured_on: Hardware
    source: str
    """Where the figures come from, in words that follow a colon."""
    best_share: float
    """Formats that nobody measured are given it, and none is given more."""
    measured: Mapping[str, AttentionPace]

    def pace(self, kv_cache_dtype: str, hardware: Hardware, query_rows: int = 1) -> AttentionPace:
        """Return what is expected on a machine, of so many query rows a KV head.

        share = min(best, measured x bytes a multiprocessor clock there / bytes a clock here): the
        instructions for a byte take as many clocks on both. A format that reached the best share
        was held up by memory and is taken to be so anywhere. Where the clocks of a machine are not
        known the measured share itself is taken.
        """
        known = self._unpacked(kv_cache_dtype, query_rows)
        there, here = self.measured_on.bytes_a_clock, hardware.bytes_a_clock
        if there is None or here is None or known.share >= self.best_share:
            return known
        share = known.share * there / here
        return AttentionPace(min(self.best_share, share), known.fixed_s)

    def _unpacked(self, kv_cache_dtype: str, query_rows: int) -> AttentionPace:
        """Measured was with one unpacking; it is what takes a packed format's time."""
        known = self.measured_pace(kv_cache_dtype)
        if not kv_cache_dtype.startswith(PACKED):
            return known
        return replace(known, share=known.share / -(-query_rows // ROWS_AT_ONCE))

    def measured_pace(self, kv_cache_dtype: str) -> AttentionPace:
        """Return what was measured of a format, of FP8 whatever its exponent."""
        name = PLAIN if kv_cache_dtype in _SAME_AS_PLAIN else kv_cache_dtype
        family = "fp8" if name.startswith("fp8") else name
        return self.measured.get(family, AttentionPace(self.best_share, 0.0))


def read_attention(path: Path, table: Mapping[str, Hardware]) -> AttentionTable:
    """Return the shipped figures; `table` are the machines that they may have been measured on."""
    found = read_document(path).content["attention"]
    return AttentionTable(
        measured_on=table[found["measured_on"]],
        source=found["source"],
        best_share=found["best_share"],
        measured={
            name: AttentionPace(entry["share"], entry["fixed_us"] / 1e6)
            for name, entry in found["formats"].items()
        },
    )
