"""Runs the TurboQuant decode kernel's CUDA source on the CPU, with g++ and `cuda_on_cpu.h`."""

import contextlib
import ctypes
import functools
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from cuda_stand_in import decode_module

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
OPTIONS = ("-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-shared", "-fPIC", "-march=native")
FUNCTION = re.compile(r"^INLINE [^;{]*\{(?:.*\}$|\n(?:.*\n)*?\}$)", re.MULTILINE)
KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\([^)]*\)\n(\w+)\(([^)]*)\)')
STATEMENT = re.compile(r'asm volatile\("[^"]*"[^";]*(?:"memory")?\);')
DYNAMIC = "extern __shared__ __align__(128) u8 memory[];"


@contextlib.contextmanager
def decode_on_cpu(
    multiprocessors: int,
    capability: tuple[int, int] = (9, 0),
    change: Callable[[str], str] = lambda source: source,
) -> Iterator[ModuleType]:
    """turboquant_decode, whose launches run here, with the source as `change` leaves it."""
    card = decode_module(multiprocessors, capability)
    with card as module, tempfile.TemporaryDirectory() as built:
        launch_module = module.launch.__globals__

        @functools.cache
        def library(sizes: Any) -> ctypes.CDLL:
            return _built(change(launch_module["SOURCE"].read_text()), dict(sizes), Path(built))

        def launch(sizes: Any, _architecture: str, kernel: str, how: Any, arguments: Any) -> None:
            _run(getattr(library(sizes), f"run_{kernel}"), how, arguments)

        with mock.patch.object(module, "launch", launch):
            yield module


def _run(kernel: Any, how: Any, arguments: list[tuple[Any, Any]]) -> None:
    kept = [kind(value) for value, kind in arguments]
    places = (ctypes.c_void_p * len(kept))(*(ctypes.addressof(value) for value in kept))
    kernel.restype = ctypes.c_char_p
    grid = (ctypes.c_uint * 3)(*how.grid)
    fault = kernel(grid, how.threads, ctypes.c_size_t(how.shared_bytes), places)
    if fault:
        raise RuntimeError(fault.decode())


def _built(source: str, sizes: dict[str, int], folder: Path) -> ctypes.CDLL:
    code = Path(tempfile.mkdtemp(dir=folder), "kernel.cpp")
    entries = "\n".join(_entry(*found) for found in KERNEL.findall(source))
    code.write_text(f'#include "{HEADER}"\n{_without_ptx(source)}\n{entries}\n')
    macros = [f"-D{name.upper()}={value}" for name, value in sizes.items()]
    library = code.with_suffix(".so")
    subprocess.run(["g++", *OPTIONS, *macros, "-o", library, code], check=True)
    return ctypes.CDLL(str(library))


def _without_ptx(source: str) -> str:
    """The header has every function that is PTX; statements of it order what is in order here."""
    plain = FUNCTION.sub(lambda it: "" if "asm" in it[0] else it[0], source)
    return STATEMENT.sub(";", plain).replace(DYNAMIC, "u8* memory = dynamic_memory;")


def _entry(kernel: str, parameters: str) -> str:
    """A function that calls a kernel with what a list of addresses leads to, as CUDA's launch."""
    types = [part.replace("__restrict__", "").rsplit(None, 1)[0] for part in parameters.split(",")]
    values = ", ".join(f"*({kind}*)given[{place}]" for place, kind in enumerate(types))
    return (
        f'extern "C" const char* run_{kernel}(const unsigned* grid, int threads, size_t bytes, '
        f"void** given) {{\n"
        f"  return run_grid(grid, threads, bytes, [=] {{ {kernel}({values}); }});\n}}"
    )
