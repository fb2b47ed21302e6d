"""How fast a model that writes no text answers: texts and tokens a second, and how long each waits.

Every request has texts of its own, so that no cache answers for the model.
"""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.bench.figures import quantiles
from sparkdeploy.bench.suites import filler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.bench.quantiles import Quantiles
    from sparkdeploy.server.client import ServedModel
    from sparkdeploy.server.pooling import PoolingEndpoint

WORDS = 128
TEXTS = 8
"""A request."""


@dataclass(frozen=True, slots=True)
class PoolingFigures:
    """What one number of requests at once came to."""

    endpoint: str
    concurrency: int
    requests: int
    texts_per_request: int
    duration_s: float
    prompt_tokens: int
    latency_s: Quantiles
    """Of a request, in seconds."""

    @property
    def texts_per_s(self) -> float:
        return self.requests * self.texts_per_request / self.duration_s

    @property
    def tok_s(self) -> float:
        return self.prompt_tokens / self.duration_s


def measure_pooling(
    open_model: Callable[[], ServedModel],
    endpoint: PoolingEndpoint,
    *,
    concurrency: Sequence[int],
    requests: int,
    on_progress: Callable[[str], None],
) -> Iterator[PoolingFigures]:
    """Yield the figures of each number of requests at once; a warm-up goes before the first.

    Raises UnhealthyError when a request fails.
    """
    seeds = itertools.count(time.time_ns() % 2**31)
    _ask(open_model, endpoint, next(seeds))
    for count in concurrency:
        on_progress(f"{count} at once")
        started_s = time.perf_counter()
        with ThreadPoolExecutor(count) as threads:
            asked = [
                threads.submit(_ask, open_model, endpoint, next(seeds))
                for _ in range(max(requests, count))
            ]
            answers = [item.result() for item in asked]
        duration_s = time.perf_counter() - started_s
        latency_s = quantiles(seconds for seconds, _ in answers)
        assert latency_s is not None  # noqa: S101 - one request at the least
        yield PoolingFigures(
            endpoint=endpoint.path,
            concurrency=count,
            requests=len(answers),
            texts_per_request=TEXTS,
            duration_s=duration_s,
            prompt_tokens=sum(tokens for _, tokens in answers),
            latency_s=latency_s,
        )


def pooling_lines(figures: Sequence[PoolingFigures]) -> Iterator[str]:
    """Yield a line for each number of requests at once."""
    yield f"{figures[0].endpoint}, {TEXTS} texts of {WORDS} words a request"
    yield "at once   texts/s     tok/s    p50 ms    p95 ms"
    for item in figures:
        yield (
            f"{item.concurrency:>7}{item.texts_per_s:>10.1f}{item.tok_s:>10.0f}"
            f"{item.latency_s.p50 * 1000:>10.1f}{item.latency_s.p95 * 1000:>10.1f}"
        )


def _ask(
    open_model: Callable[[], ServedModel], endpoint: PoolingEndpoint, seed: int
) -> tuple[float, int]:
    """Return the seconds that a request took, and the tokens that the server counted."""
    texts = [filler(WORDS, seed=seed * TEXTS + at) for at in range(TEXTS)]
    with open_model() as model:
        started_s = time.perf_counter()
        answer = model.post(endpoint.path, endpoint.body(texts))
        return time.perf_counter() - started_s, answer.prompt_tokens
