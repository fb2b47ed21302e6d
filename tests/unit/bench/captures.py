"""Captures made by hand, for tests."""

import math
from collections.abc import Mapping, Sequence

from sparkdeploy.bench.quality.capture import Capture, CaptureOrigin, Position, TextCapture

SERVED = CaptureOrigin("qwen", "0")


def logs(**probabilities: float) -> Mapping[int, float]:
    """Log-probabilities by token: `logs(t1=0.5)` is token 1 with a half."""
    return {int(name[1:]): math.log(value) for name, value in probabilities.items()}


def text(
    *positions: tuple[int, Mapping[int, float]], name: str = "a", greedy: Sequence[int] = (1, 2, 3)
) -> TextCapture:
    """A text of `(token, log-probabilities)` pairs."""
    return TextCapture(name, tuple(Position(*item) for item in positions), tuple(greedy))


def capture(*texts: TextCapture, label: str = "one") -> Capture:
    """A capture of those texts."""
    return Capture(label, "qwen", "2026-11-21T09:00:00+00:00", "0", texts, SERVED)
