"""The table of a model that writes no text is in the units of its heading."""

from __future__ import annotations

from sparkdeploy.bench.pooling import PoolingFigures, pooling_lines
from sparkdeploy.bench.quantiles import Quantiles


def test_the_table_of_embeddings_is_in_the_units_of_its_heading() -> None:
    latency_s = Quantiles(count=40, p50=0.25, p95=1.5, p99=1.75, mean=0.5, max=2.0)
    measured = PoolingFigures(
        "/v1/embeddings",
        concurrency=4,
        requests=40,
        texts_per_request=8,
        duration_s=20.0,
        prompt_tokens=50_000,
        latency_s=latency_s,
    )
    _, heading, row = pooling_lines([measured])
    assert heading.replace(" ms", "_ms").split()[2:] == ["texts/s", "tok/s", "p50_ms", "p95_ms"]
    assert [float(it) for it in row.split()] == [4, 40 * 8 / 20, 50_000 / 20, 250, 1500]
