"""How long the GPU takes, in microseconds by its own events: the median of twenty."""

from collections.abc import Callable

import torch

REPEATS = 20


def graph_us(step: Callable[[], object]) -> float:
    """Return what a CUDA graph of `step` takes; it runs once before, for what is compiled."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return median_us(graph.replay)


def median_us(run: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * begin.elapsed_time(end))
    return sorted(times)[REPEATS // 2]
