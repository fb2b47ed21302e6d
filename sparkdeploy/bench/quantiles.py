"""Quantiles of values, as the record has them."""

from dataclasses import dataclass

# As in bench/record.py, pydantic reads the types.


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of all values of one kind (linear interpolation between ranks); `count` says how many."""

    count: int
    p50: float
    p95: float
    p99: float
    mean: float
    max: float
