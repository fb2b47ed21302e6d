"""The Python of TurboQuant's decode kernel where there is neither CUDA nor its bindings."""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from unittest import mock

import torch
from sparkdeploy_vllm import turboquant

STREAM = 0x5000
MULTIPROCESSORS = 132


@contextlib.contextmanager
def decode_module(
    multiprocessors: int = MULTIPROCESSORS, capability: tuple[int, int] = (9, 0)
) -> Iterator[ModuleType]:
    """`turboquant.decode` on a card like an H100; what it would launch must be replaced."""
    bindings = ModuleType("cuda.bindings")
    bindings.driver, bindings.nvrtc = ModuleType("driver"), ModuleType("nvrtc")  # type: ignore[attr-defined]
    modules = {"cuda": ModuleType("cuda"), "cuda.bindings": bindings}
    before = set(vars(turboquant))
    with mock.patch.dict(sys.modules, modules):
        module = importlib.import_module("sparkdeploy_vllm.turboquant.decode")
        stream = mock.Mock(cuda_stream=STREAM)
        with (
            mock.patch.object(module, "_capability", return_value=capability),
            mock.patch.object(module, "multiprocessors", return_value=multiprocessors),
            mock.patch.object(torch.cuda, "current_stream", return_value=stream),
        ):
            yield module
    # Whoever asks for the kernel later must miss the bindings again.
    for name in set(vars(turboquant)) - before:
        delattr(turboquant, name)
