"""Times launches on a CUDA card as they run in a captured graph."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

PAUSE_S = 0.01
"""Rest before each replay: without it a big card runs into its power limit and slows down."""
SMALLEST_LIMIT_BYTES = 99 * 1024


def captured(launch: Callable[[int], object], launches: int) -> torch.cuda.CUDAGraph:
    """Return a graph of `launch(0)` to `launch(launches - 1)`, which ran before."""
    launch(0)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(launches):
            launch(turn)
    graph.replay()
    return graph


def median_ms(graphs: Sequence[torch.cuda.CUDAGraph], rounds: int) -> list[float]:
    """Return the median milliseconds of each graph; they take turns, `rounds` times."""
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(rounds):
        for graph, own in zip(graphs, times, strict=True):
            own.append(_replay_ms(graph))
    return [statistics.median(own) for own in times]


def shared_bytes_limit(device: torch.device) -> int:
    """Return the most shared memory that one program may have."""
    about = torch.cuda.get_device_properties(device)
    return getattr(about, "shared_memory_per_block_optin", SMALLEST_LIMIT_BYTES)


def _replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    time.sleep(PAUSE_S)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)
