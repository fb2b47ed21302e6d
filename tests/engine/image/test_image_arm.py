"""Whole engines for a Spark's processor, built by the product where it is emulated.

`./tests/run --arm` runs these alone; docs/figures/engines.md has what they took.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy import labels
from sparkdeploy.image.inside.prove import runs_on
from sparkdeploy.node import facts
from sparkdeploy.node.container import ContainerSpec, Mount
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import load_settings
from sparkdeploy.upkeep.image_build import StageImage
from tests.engine.emulated import CPUINFO, Built, emulated_engine, skip_where_nothing_is_emulated
from tests.engine.vllm.twin_user import unique_name

pytestmark = [pytest.mark.arm, pytest.mark.timeout(4 * 3600)]
ENGINES = {"cuda-0.25": ("0.25.1", "2.11.0"), "cuda-0.33": ("0.33.0", "2.14.0")}
SPARK = 121
LOADER = Path(__file__).with_name("load_libraries.py").read_text(encoding="utf-8")


@pytest.fixture(scope="module", params=ENGINES)
def built(request: pytest.FixtureRequest, host: DockerHost) -> Iterator[Built]:
    """Every stage of an engine; what was not here before goes again."""
    skip_where_nothing_is_emulated()
    with emulated_engine(request.param, load_settings()) as made:
        yield made


def proof_of(host: DockerHost, stage: StageImage) -> dict[str, object]:
    image = host.find_image(stage.tag)
    assert image is not None
    assert facts.known_architecture(image.architecture) == "aarch64"
    proof: dict[str, object] = json.loads(image.labels[labels.PROOF])
    return proof


def test_the_engine_is_what_its_lock_says_and_has_code_for_the_spark(
    host: DockerHost, built: Built
) -> None:
    engine = built[1]
    proof = proof_of(host, engine)
    versions, kernels = proof["versions"], proof["kernels"]
    assert isinstance(versions, dict)
    assert isinstance(kernels, dict)
    assert (versions["vllm"], versions["torch"]) == ENGINES[engine.engine]
    assert str(proof["torch_cuda"]).startswith("13.")
    for library in ("_C_stable_libtorch.abi3.so", "_moe_C_stable_libtorch.abi3.so"):
        assert any(runs_on(name, SPARK) for name in kernels[library]), library
    assert proof["rdma_missing"] == {}


def test_the_plugin_fits(host: DockerHost, built: Built) -> None:
    assert proof_of(host, built[2])["selfcheck"] == "fits"


TWICE = """
import collections, json
from importlib import metadata
owners = collections.defaultdict(set)
for package in metadata.distributions():
    for file in package.files or ():
        if file.suffix == ".so":
            owners[str(file)].add(package.name)
print(json.dumps({file: sorted(names) for file, names in owners.items() if len(names) > 1}))
"""


def test_no_two_packages_bring_a_library_of_one_name(
    host: DockerHost, built: Built, tmp_path: Path
) -> None:
    """The one that is installed last wins, and what asks for the other fails when it is used."""
    assert printed(host, built, tmp_path, TWICE) == {}


B12X = """
import json
from vllm.utils.b12x import _B12X_SUBMODULES as found
print(json.dumps({name: module is not None for name, module in found.items()}))
"""


def test_b12x_has_every_module_that_vllm_asks_of_it(
    host: DockerHost, built: Built, tmp_path: Path
) -> None:
    if built[1].engine != "cuda-0.33":
        pytest.skip("the lock of this engine has no b12x")
    found = printed(host, built, tmp_path, B12X)
    assert found
    assert all(found.values()), found


def printed(host: DockerHost, built: Built, tmp_path: Path, program: str) -> dict[str, Any]:
    """Run a program in the engine's image, emulated, and return the JSON of its last line."""
    processor = tmp_path / "cpuinfo"
    processor.write_text(CPUINFO, encoding="utf-8")
    container = ContainerSpec(
        name=unique_name("loader"),
        image=built[-1].tag,
        entrypoint=("/opt/venv/bin/python",),
        command=("-c", program),
        env={},
        mounts=(Mount(str(processor), "/proc/cpuinfo"),),
        user="65532:65532",
        gpus="none",
        tmpfs={"/tmp": "rw,size=64m"},
        shm_size_bytes=64 << 20,
        network="none",
    )
    code, said = host.run_to_end(container, timeout_s=3600)
    assert code == 0, said[-4000:]
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def test_every_library_of_vllm_loads_beside_a_stand_in_for_the_driver(
    host: DockerHost, built: Built, tmp_path: Path
) -> None:
    found = printed(host, built, tmp_path, LOADER)
    print(found.pop("torch"), len(found), "libraries")
    assert len(found) > 5
    assert {name: why for name, why in found.items() if why} == {}
