"""What checks share: how far a result is off, weights to draw, what a refusal says, and ranks."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state


def error(got: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative error, by the norms in FP64."""
    return ((got.double() - exact.double()).norm() / exact.double().norm()).item()


def drawn(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * 0.05).bfloat16()


def refusal(act: Callable[..., object], *arguments: object, **named: object) -> str:
    """Return what it says; ConversionMismatchError is a RuntimeError."""
    try:
        act(*arguments, **named)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "nothing was refused"


@contextlib.contextmanager
def one_of_ranks(rank: int, ranks: int, folder: str, name: str) -> Iterator[Any]:
    """Be a rank of several processes; yield vLLM's configuration."""
    os.environ["VLLM_DIST_IDENT"] = name  # vLLM's own launcher names its ranks
    current = VllmConfig()
    with set_current_vllm_config(current):
        store = f"file://{folder}/store-{ranks}"
        parallel_state.init_distributed_environment(ranks, rank, store, rank, backend="gloo")
        parallel_state.initialize_model_parallel(ranks, 1)
        yield current
