"""What a request must hold to be a good one: `ttft=2s,gap=100ms`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sparkdeploy.bench.record import RequestSample

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0}
_SEEN: Mapping[str, Callable[[RequestSample], float | None]] = {
    "ttft": lambda sample: sample.ttft_s,
    "gap": lambda sample: sample.gap_s.max if sample.gap_s is not None else None,
    "tpot": lambda sample: sample.tpot_s,
    "e2e": lambda sample: sample.duration_s,
}


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds by name: ttft, gap (the longest of a request), tpot, e2e."""

    seconds: Mapping[str, float]

    def holds(self, sample: RequestSample) -> bool:
        """Return whether the request succeeded within every limit, at a limit included.

        One whose tokens all came at once has no gap and no time per token, and holds those.
        """
        if sample.failure is not None:
            return False
        return all((_SEEN[name](sample) or 0.0) <= limit for name, limit in self.seconds.items())

    def __str__(self) -> str:
        return ", ".join(f"{name} {span_text(limit)}" for name, limit in self.seconds.items())


def parse_limits(text: str) -> Slo:
    """Read `ttft=2s,gap=100ms`; UsageError names what is wrong."""
    seconds: dict[str, float] = {}
    for part in text.split(","):
        name, equals, span = (word.strip() for word in part.partition("="))
        if name not in _SEEN or not equals:
            raise UsageError(
                f"--slo: {part.strip()!r} is no limit",
                hint=f"such as ttft=2s,gap=100ms; names are {', '.join(_SEEN)}",
            )
        if name in seconds:
            raise UsageError(f"--slo: {name} is limited twice")
        seconds[name] = parse_span(span, f"--slo: {name}")
    return Slo(seconds)


def parse_span(text: str, what: str) -> float:
    """Read `100ms`, `2.5s` or `10min` in seconds, more than nothing; UsageError otherwise."""
    found = _SPAN.fullmatch(text.strip())
    if found is None or float(found[1]) == 0:
        raise UsageError(f"{what}: {text!r} is no time", hint="such as 100ms, 2.5s or 10min")
    return float(found[1]) * _UNITS_S[found[2]]


def span_text(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"
