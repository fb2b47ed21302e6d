"""Compiles and launches the TurboQuant decode kernels: CUDA C++, by NVRTC, once for each shape.

NVRTC and CUDA's Python bindings come with PyTorch; nothing is compiled while an image is built, so
an image serves whatever card it lands on.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cuda.bindings import driver, nvrtc

SOURCE = Path(__file__).with_name("decode.cu")
ATTEND, JOIN = "attend", "join"


Sizes = tuple[tuple[str, int], ...]
"""What the source is compiled for, macros and their values; see its head."""


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """A grid, a block's threads, its dynamic shared memory, a stream's handle, and whether the
    kernel waits by itself for the one in front of it.
    """

    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    stream: int
    is_early: bool = False


class CudaError(RuntimeError):
    """What the driver or the compiler says."""


def launch(
    sizes: Sizes, architecture: str, kernel: str, how: LaunchShape, arguments: list[tuple[Any, Any]]
) -> None:
    """Queue `kernel`; each argument is a value and its ctypes type. Waits for nothing."""
    function = _function(sizes, architecture, kernel, how.shared_bytes)
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = how.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = how.threads, 1, 1
    config.sharedMemBytes = how.shared_bytes
    config.hStream = driver.CUstream(how.stream)
    if how.is_early:
        config.attrs, config.numAttrs = [_early()], 1
    values, types = zip(*arguments, strict=True)
    _done(driver.cuLaunchKernelEx(config, function, (values, types), 0))


@cache
def _early() -> Any:
    """Lets a launch come to the card before the one in front of it has ended."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


@cache
def _function(sizes: Sizes, architecture: str, kernel: str, shared_bytes: int) -> Any:
    function = _done(driver.cuModuleGetFunction(_module(sizes, architecture), kernel.encode()))
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _done(driver.cuFuncSetAttribute(function, limit, shared_bytes))
    return function


@cache
def _module(sizes: Sizes, architecture: str) -> Any:
    return _done(driver.cuModuleLoadData(compiled(sizes, architecture)))


@cache
def compiler() -> str:
    """NVRTC's release, as in "13.0"."""
    status, *release = nvrtc.nvrtcVersion()
    return ".".join(map(str, _done((status, release))))


def compiled(sizes: Sizes, architecture: str) -> bytes:
    """Machine code of the source for `architecture` (as in "sm_90"); CudaError with the log."""
    program = _done(nvrtc.nvrtcCreateProgram(SOURCE.read_bytes(), SOURCE.name.encode(), 0, [], []))
    macros = [f"-D{name.upper()}={value}" for name, value in sizes]
    options = [f"--gpu-architecture={architecture}", "--std=c++17", *macros]
    words = [option.encode() for option in options]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), words)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = b" " * _done(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CudaError(log.decode(errors="replace"))
    code = b" " * _done(nvrtc.nvrtcGetCUBINSize(program))
    _done(nvrtc.nvrtcGetCUBIN(program, code))
    nvrtc.nvrtcDestroyProgram(program)
    return code


def _done(answer: tuple[Any, ...]) -> Any:
    status, *found = answer
    if status.value:
        raise CudaError(str(status))
    return found[0] if found else None
