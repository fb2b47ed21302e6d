"""An engine of the tests' own that is compiled: vLLM's build for processors with AVX2.

It is not quite as vLLM's authors build it:

- Their two libraries for AVX-512 are left empty: they are linked with oneDNN, which comes from a
  forge, and tests can hide AVX-512 from an engine.
- torch is that of the CPU engine, three releases newer.
- The compiler is Debian 12's, which is refused for what it makes of AVX-512.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.image.context import ContextFile
from sparkdeploy.image.lock import WheelPlatform
from sparkdeploy.image.stages import Stage, stages_of
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import BuildNetwork
from tests.engine.shipped_stages import REHEARSAL
from tests.unit.conftest import REPOSITORY
from tools.lock_engine import make_lock

ENGINE, FOR_GPUS = "compiled-cpu", "cuda-0.19"
DAY = "2026-04-30"
"""That of the lock for GPUs."""
LOCK = "x86_64-py311"
ON_GPUS = (
    *("torch", "torchaudio", "torchvision", "triton", "opencv-python-headless"),
    *("flashinfer-cubin", "flashinfer-python", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl"),
    "quack-kernels",
)
"""What vLLM's wheel for GPUs asks for, and nothing here needs or has from elsewhere."""
TORCH_CHECK = re.compile(r' \\\n && \S+ -c "import torch, sys; .*"$', re.MULTILINE)
TORCH_SOURCE = "${TORCH_SOURCE#--no-index}"
"""Where torch lies at hand, what it needs does not."""
FILES = {
    "cmake/narrow.cmake": """
set(CMAKE_CXX_COMPILER_VERSION 12.3)
set(CMAKE_CXX17_EXTENSION_COMPILE_OPTION -std=gnu++20)
file(WRITE ${CMAKE_BINARY_DIR}/empty.cpp "")
function(leave_empty)
  set_target_properties(
    _C _C_AVX512 PROPERTIES SOURCES ${CMAKE_BINARY_DIR}/empty.cpp LINK_LIBRARIES "")
endfunction()
cmake_language(DEFER CALL leave_empty)
""",
    "cmake/onednn/CMakeLists.txt": "project(none LANGUAGES CXX)\nadd_library(dnnl INTERFACE)\n",
    # torch 2.13 has it no more.
    "cmake/gone.h": "#include <unistd.h>\nnamespace at::cpu { inline unsigned L2_cache_size() "
    "{ return sysconf(_SC_LEVEL2_CACHE_SIZE); } }\n",
}
VARIABLES = f"""
TORCH_SOURCE={TORCH_SOURCE}
export CMAKE_ARGS=-DCMAKE_PROJECT_vllm_extensions_INCLUDE=/compile/cmake/narrow.cmake
export CXXFLAGS='-include /compile/cmake/gone.h'
export FETCHCONTENT_SOURCE_DIR_ONEDNN=/compile/cmake/onednn
"""


def narrow_stages(resources: Path, network: BuildNetwork) -> tuple[Stage, ...]:
    """Write what ships and the engine into a new folder; return the engine's stages."""
    for name in ("recipes", "dockerfiles"):
        shutil.copytree(REPOSITORY / name, resources / name)
    template = resources / "dockerfiles" / "engine-source.Dockerfile.j2"
    text = TORCH_CHECK.sub("", template.read_text())
    template.write_text(text.replace("$TORCH_SOURCE", TORCH_SOURCE))
    engines = resources / "recipes" / "engines"
    of_gpu: dict[str, Any] = yaml_text.load_file(engines / f"{FOR_GPUS}.yaml")
    of_cpu: dict[str, Any] = yaml_text.load_file(engines / f"{REHEARSAL}.yaml")
    packages = [*of_cpu["base"]["packages"], "ccache", "libnuma-dev"]
    changed = {
        "name": ENGINE,
        "device": "cpu",
        "torch": of_cpu["torch"],
        "base": {**of_cpu["base"], "packages": packages},
        "source": {**of_gpu["source"], "disk_gb": 8, "memory_gib": 8},
    }
    # JSON is YAML too.
    (engines / f"{ENGINE}.yaml").write_text(json.dumps({**of_gpu, **changed}))
    _write_lock(engines / "locks", of_gpu["vllm"], network)
    return stages_of(
        load_engine(Library((resources / "recipes",)), ENGINE),
        base_source="debian",
        architecture="x86_64",
        resources=resources,
    )


def _write_lock(locks: Path, vllm: str, network: BuildNetwork) -> None:
    folder = locks / ENGINE
    folder.mkdir()
    (folder / "requirements.in").write_text(f"vllm=={vllm}\nnetworkx\nsympy\n")  # torch's
    (folder / "overrides.in").write_text("".join(f"{it}; python_version < '3'\n" for it in ON_GPUS))
    platform = WheelPlatform("x86_64", "3.11")
    text = make_lock(folder, platform, DAY, network=network, without=("vllm",))
    (folder / f"{LOCK}.txt").write_text(text)
    shutil.copy(locks / REHEARSAL / f"{LOCK}-torch.txt", folder)


def narrowed(stage: Stage) -> Stage:
    """Return the stage with what makes its compiler leave AVX-512 out."""
    files = {file.path: file for file in stage.context}
    files |= {path: ContextFile(path, text.encode()) for path, text in FILES.items()}
    with files["compile/source"].open() as said:
        files["compile/source"] = ContextFile("compile/source", said.read() + VARIABLES.encode())
    return replace(stage, context=tuple(files.values()))
