"""Rehearsals on vLLM 0.25.1 for CPUs, the release that the default engine has.

Its build of torch lies on PyTorch's own index alone. Where that is out of reach, the engine is
built with the CUDA build of the same version instead, which Python's index has: everything but
torch's own kernels is the same. That image takes 6 GB, and a quarter of an hour on two busy cores.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sparkdeploy.image.network import has_torch_at_hand
from sparkdeploy.settings import load_settings
from tests.engine.program import Program
from tests.engine.shipped_stages import shipped_stages
from tests.unit.conftest import REPOSITORY

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.timeout(5400),
    pytest.mark.usefixtures("host"),
    pytest.mark.runs("rehearse"),
]

ENGINE = "cpu-0.25"
TORCH_LOCK = f"locks/{ENGINE}/x86_64-py311-torch.txt"
CUDA_LOCK = "locks/cuda-0.25/x86_64-py311.txt"
OF_TORCH = re.compile(
    r"torch==|nvidia-(cublas|cuda-(runtime|cupti|nvrtc)|cudnn-cu13|cufft|cufile|curand|cusolver|"
    r"cusparse|cusparselt-cu13|nccl-cu13|nvjitlink|nvshmem-cu13|nvtx)=="
)
"""Lines of the CUDA engine's lock that torch's CUDA build needs to be imported."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A user whose rehearsals are of that release."""
    root = tmp_path_factory.mktemp("older")
    env = {"SPARKDEPLOY_REHEARSAL_ENGINE": ENGINE}
    settings = load_settings()
    if not has_torch_at_hand(shipped_stages(ENGINE)[1], settings):
        env["SPARKDEPLOY_RESOURCES"] = str(_with_cuda_build(root / "resources"))
        env["SPARKDEPLOY_TORCH_CPU_INDEX"] = (
            settings.build.index_url or settings.hosts.package_index
        )
    return Program(root, env)


def _with_cuda_build(resources: Path) -> Path:
    for name in ("recipes", "dockerfiles"):
        shutil.copytree(REPOSITORY / name, resources / name)
    engines = resources / "recipes" / "engines"
    whole = (engines / CUDA_LOCK).read_text().replace("\\\n", " ").splitlines()
    chosen = [line for line in whole if OF_TORCH.match(line)]
    (engines / TORCH_LOCK).write_text("".join(f"{line}\n" for line in chosen))
    return resources


@pytest.mark.parametrize("recipe", ["v2", "v3"])
def test_drafts_say_what_is_said_without_them(program: Program, recipe: str) -> None:
    report = program.answer("rehearse", recipe)
    assert report["changes"][0] == "engine cuda-0.25 -> cpu-0.25"
    assert report["is_compared"]
    assert report["speculation"]["accepted_tokens"] > 0
    assert (report["fp8_layers"], report["lm_head"]) == (12, "int8")
    assert "eight of these at once" in report["proved"]
