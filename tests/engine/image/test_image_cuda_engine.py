"""The default CUDA engine: built without a GPU and without a network, and its Spark wheels read."""

import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdeploy import labels
from sparkdeploy.image import lock, network
from sparkdeploy.image.inside.prove import kernels_of, runs_on
from sparkdeploy.image.stages import Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.facts import architecture
from sparkdeploy.node.host import DockerHost
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import Settings, load_settings, resources
from tests.engine.image.wheels import fetch_wheels
from tests.engine.shipped_stages import build_all, shipped_stages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]
ENGINE = "cuda-0.25"
SPARK = 121


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The machine's settings with every wheel of the lock in a folder, and no index to ask.

    The folder takes 4.6 GB; name one that is kept in SPARKDEPLOY_TESTS_WHEELHOUSE.
    """
    kept = os.environ.get("SPARKDEPLOY_TESTS_WHEELHOUSE")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("wheelhouse")
    found = load_settings()
    engine = load_engine(Library((resources() / "recipes",)), ENGINE)
    locks = lock.lock_files(engine, architecture=architecture(), resources=resources())
    fetch_wheels(folder, [*locks.values()], found.build, architecture=architecture())
    return replace(found, build=replace(found.build, index_url=None, find_links=(folder,)))


@pytest.fixture(scope="module")
def stages() -> tuple[Stage, ...]:
    """What the engine is made of on this machine."""
    return shipped_stages(ENGINE)


@pytest.fixture(scope="module")
def built(host: DockerHost, stages: tuple[Stage, ...], settings: Settings) -> list[ImageFact]:
    """Every stage's image; 9 GB of images and 30 GB of disk on the way."""
    # Only the base, which is made of packages, has a network.
    assert [network.build_network(stage, settings) for stage in stages[1:]] == ["none", "none"]
    return [image for _, image in build_all(host, stages, settings)]


def test_the_engine_is_what_its_lock_says_and_has_code_for_the_spark(
    built: list[ImageFact],
) -> None:
    proof = json.loads(built[1].labels[labels.PROOF])
    assert proof["versions"]["vllm"] == "0.25.1"
    assert proof["versions"]["torch"] == "2.11.0"
    assert proof["torch_cuda"].startswith("13.")
    kernels = {
        library: [name for name in counts if runs_on(name, SPARK)]
        for library, counts in proof["kernels"].items()
    }
    for library in ("_C_stable_libtorch.abi3.so", "_moe_C_stable_libtorch.abi3.so"):
        assert kernels[library] == ["sm_120", "sm_120f"]


def test_the_plugin_fits(built: list[ImageFact]) -> None:
    assert json.loads(built[2].labels[labels.PROOF])["selfcheck"] == "fits"


def test_vllm_is_installed_for_the_python_that_serves(
    host: DockerHost, built: list[ImageFact]
) -> None:
    # `vllm --version` itself looks for a GPU and dies without one.
    program = "import vllm.version; print(vllm.version.__version__)"
    code, output = host.run_once(
        built[-1].image_id, ["-c", program], entrypoint=["/opt/venv/bin/python"], timeout_s=600
    )
    assert (code, output.strip().splitlines()[-1]) == (0, "0.25.1")


def test_flashinfer_compiles_and_links_a_kernel_of_its_own_for_the_spark(
    host: DockerHost, built: list[ImageFact]
) -> None:
    program = (
        "from flashinfer.jit.page import gen_page_module as made; spec = made(); spec.build(False);"
        " print(spec.jit_library_path.stat().st_size)"
    )
    command = ["FLASHINFER_CUDA_ARCH_LIST=12.1a", "/opt/venv/bin/python", "-c", program]
    code, output = host.run_once(
        built[-1].image_id, command, entrypoint=["/usr/bin/env"], timeout_s=900
    )
    assert code == 0, output[-4000:]
    assert int(output.split()[-1]) > 0


def test_what_no_spark_loads_is_not_in_the_image(host: DockerHost, built: list[ImageFact]) -> None:
    searched = ["/opt/venv", "-name", "*.cubin", "-o", "-name", "*.a", "-not", "-path", "*/cu13/*"]
    code, output = host.run_once(built[-1].image_id, searched, entrypoint=["/usr/bin/find"])
    assert (code, output) == (0, "")


@pytest.mark.parametrize("engine", ["cuda-0.25", "cuda-0.33"])
@pytest.mark.parametrize(
    ("package", "libraries"),
    [("vllm", ("vllm/_C*.so", "vllm/_moe_C*.so")), ("torch", ("torch/lib/libtorch_cuda.so",))],
)
def test_the_sparks_own_wheels_match_their_hashes_and_run_on_its_gpu(
    tmp_path: Path, engine: str, package: str, libraries: tuple[str, ...]
) -> None:
    settings = load_settings()
    files = lock.lock_files(
        load_engine(Library((resources() / "recipes",)), engine),
        architecture="aarch64",
        resources=resources(),
    )
    text = files["packages.txt"].read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.startswith(f"{package}=="))
    alone = tmp_path / "packages.txt"
    alone.write_text(line)
    (wheel,) = fetch_wheels(tmp_path, [alone], settings.build)
    for pattern in libraries:
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if Path(name).match(pattern))
            unpacked = Path(archive.extract(name, tmp_path))
        found = {str(kernel) for kernel in kernels_of(unpacked)}
        print(engine, name, sorted(found))
        assert any(runs_on(kernel, SPARK) for kernel in found)
