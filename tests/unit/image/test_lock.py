"""Locks: what they pin, what fits a platform, and how they are resolved anew."""

import itertools
from pathlib import Path

import pytest

from sparkdeploy.errors import BuildError
from sparkdeploy.image import lock
from sparkdeploy.image.lock import LockedPackage, PackagePin, WheelPlatform
from sparkdeploy.settings import BuildNetwork, Settings, resources
from tests.unit.conftest import GiveProgram
from tools import lock_engine

from .conftest import LoadEngine

LOCKS = sorted((resources() / "recipes" / "engines" / "locks").rglob("*.txt"))
TORCH_2_10 = ["torch==2.10.0+cu130", "torchvision==0.25.0+cu130", "torchaudio==2.10.0+cu130"]
WITHOUT_HASH = {
    "cpu-0.25/aarch64-py311-torch.txt": ["torch==2.11.0+cpu"],
    "cpu-0.25/x86_64-py311-torch.txt": ["torch==2.11.0+cpu"],
    "cpu-0.32/aarch64-py311-torch.txt": ["torch==2.13.0+cpu"],
    "cuda-0.19/aarch64-py312-torch.txt": TORCH_2_10,
    "cuda-0.19/x86_64-py312-torch.txt": TORCH_2_10,
}
"""Builds of PyTorch's own indexes, which were out of reach when the locks were made."""


def pins(engine: str, architecture: str, python: str = "3.11") -> dict[str, str]:
    name = f"{architecture}-py{python.replace('.', '')}.txt"
    path = resources() / "recipes/engines/locks" / engine / name
    locked = lock.read_packages(path.read_text())
    return {package.pin.name: package.pin.version for package in locked}


def test_a_wheel_with_another_hash_is_not_taken(tmp_path: Path) -> None:
    wheel = tmp_path / "a_b-1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    pin, spark = PackagePin("a-b", "1.0"), WheelPlatform("aarch64", "3.11")
    for hashes, found in (
        ({lock_engine.sha256_of(wheel)}, wheel),
        ({"0" * 64}, None),
        (set(), wheel),
    ):
        package = LockedPackage(pin, frozenset(hashes))
        assert lock_engine.find_wheel(package, [tmp_path], spark) == found


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_pin_of_a_shipped_lock_has_a_hash(path: Path) -> None:
    entries = path.read_text().replace("\\\n", " ").splitlines()
    bare = [line for line in entries if line[0] != "#" and "--hash=sha256:" not in line]
    assert bare == WITHOUT_HASH.get(f"{path.parent.name}/{path.name}", [])


@pytest.mark.parametrize("python", lock_engine.PYTHONS)
@pytest.mark.parametrize("architecture", lock.ARCHITECTURES)
@pytest.mark.parametrize(
    ("engine", "vllm", "torch"),
    [("cuda-0.25", "0.25.1", "2.11.0"), ("cuda-0.33", "0.33.0", "2.14.0")],
)
def test_the_cuda_locks_hold_what_a_cluster_needs(
    engine: str, vllm: str, torch: str, architecture: str, python: str
) -> None:
    found = pins(engine, architecture, python)
    assert (found["vllm"], found["torch"]) == (vllm, torch)
    assert "ray" in found
    nccl = tuple(int(part) for part in found["nvidia-nccl-cu13"].split("."))
    assert nccl >= (2, 30, 4), "with older ones two nodes can deadlock"
    # nvcc of one release and headers of another refuse each other.
    compiler = {found[f"nvidia-{part}"] for part in ("cuda-nvcc", "cuda-crt", "nvvm")}
    assert compiler == {"13.0.88"}
    assert found["nvidia-cuda-runtime"].startswith("13.0.")
    # cuda-python of before 12.7 brings old files under cuda-bindings' names.
    assert found["cuda-python"] == found["cuda-bindings"]


@pytest.mark.parametrize(
    ("filename", "fits"),
    [
        ("a_b-1.0-py3-none-any.whl", True),
        ("a_b-1.0-py2.py3-none-any.whl", True),
        ("a_b-1.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("a_b-1.0-cp38-abi3-manylinux_2_28_x86_64.whl", True),
        ("a_b-1.0-1-py3-none-any.whl", True),
        ("a_b-1.0-py37-none-any.whl", True),
        ("a_b-1.0-py312-none-any.whl", False),
        ("a_b-1.0-py2-none-any.whl", False),
        ("a_b-1.0-cp312-abi3-manylinux_2_28_x86_64.whl", False),
        ("a_b-1.0-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("a_b-1.0-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a_b-1.0-cp311-cp311-manylinux_2_28_aarch64.whl", False),
        ("a_b-1.0-cp311-cp311-macosx_10_13_x86_64.whl", False),
        ("a_b-1.0-cp311-cp311t-manylinux_2_28_x86_64.whl", False),
        ("a_b-1.0-cp311-cp311-manylinux_2_39_x86_64.whl", False),
        ("a_b-1.0.tar.gz", False),
    ],
)
def test_a_wheel_fits_its_python_and_platform(filename: str, fits: bool) -> None:
    found = WheelPlatform("x86_64", "3.11").pin_of(filename)
    assert found == (PackagePin("a-b", "1.0") if fits else None)


def test_an_entry_is_read_with_its_hashes() -> None:
    digest = "0" * 64
    text = f"# a==1\na==1 \\\n    --hash=sha256:{digest}\nb==2+cpu\n"
    assert lock.read_packages(text) == (
        LockedPackage(PackagePin("a", "1"), frozenset({digest})),
        LockedPackage(PackagePin("b", "2+cpu")),
    )


def test_two_locks_differ_package_by_package() -> None:
    old = f"a==1\nb==1\nc==1 --hash=sha256:{'1' * 64}\nsame==1\n"
    new = f"a==2\nc==1 --hash=sha256:{'2' * 64}\nd==1\nsame==1\n"
    assert tuple(lock_engine.differences(old, new)) == (
        "~ a 1 -> 2",
        "- b 1",
        "# c 1: 1 hashes added, 1 gone",
        "+ d 1",
    )
    assert tuple(lock_engine.differences(old, old)) == ()


@pytest.mark.parametrize("python", lock_engine.PYTHONS)
def test_the_bases_python_decides_which_lock_is_used(load: LoadEngine, python: str) -> None:
    engine = load("cuda-0.25")
    assert engine.base is not None
    other = engine.model_copy(update={"base": engine.base.model_copy(update={"python": python})})
    files = lock.lock_files(other, architecture="aarch64", resources=resources())
    assert files["packages.txt"].name == f"aarch64-py{python.replace('.', '')}.txt"


def test_an_engine_may_use_the_lock_of_another(load: LoadEngine) -> None:
    mine = load("cuda-0.25").model_copy(update={"name": "mine", "lock": "cuda-0.25"})
    files = lock.lock_files(mine, architecture="aarch64", resources=resources())
    assert files["packages.txt"].parent.name == "cuda-0.25"


X86_64 = WheelPlatform("x86_64", "3.11")
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SOLUTION = f"""
[[packages]]
name = "idna"
version = "3.20"
wheels = [{{ name = "idna.whl", hashes = {{ sha256 = "{EMPTY}" }} }}]
[[packages]]
name = "torch"
version = "2.13.0"
wheels = [{{ name = "torch.whl", hashes = {{ sha256 = "{EMPTY}" }} }}]
"""


@pytest.fixture
def fake_uv(tmp_path: Path, give_program: GiveProgram) -> Path:
    """A uv that writes one solution."""
    (tmp_path / "solution").write_text(SOLUTION)
    return give_program("uv", f'for last; do :; done; cp {tmp_path}/solution "$last"')


def test_uv_is_asked_for_one_platform_and_one_day(tmp_path: Path) -> None:
    platform = WheelPlatform("aarch64", "3.12")
    argv = lock_engine.compile_argv(
        Path("uv"), tmp_path, platform, date="2026-11-15", output=tmp_path / "o"
    )
    told = dict(itertools.pairwise(argv))
    assert told["--exclude-newer"] == "2026-11-15"
    assert told["--python-platform"].startswith("aarch64-manylinux")
    assert told["--python-version"] == "3.12"


def test_a_torch_lock_states_the_hash_of_the_wheel_that_was_seen(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-1.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    wheel.write_bytes(b"")
    assert f"--hash=sha256:{EMPTY}" in lock_engine.make_torch_lock("1.0", wheel)
    assert "--hash" not in lock_engine.make_torch_lock("1.0", None)
    for python, found in (("3.11", wheel), ("3.12", None)):
        platform = WheelPlatform("x86_64", python)
        package = LockedPackage(PackagePin("torch", "1.0+cpu"))
        assert lock_engine.find_wheel(package, [tmp_path], platform) == found


def test_a_lock_lists_every_package_but_those_from_elsewhere(fake_uv: Path, tmp_path: Path) -> None:
    text = lock_engine.make_lock(
        tmp_path, X86_64, lock_engine.LOCK_DATE, network=BuildNetwork(), without=("torch",)
    )
    assert text.endswith(f"idna==3.20 \\\n    --hash=sha256:{EMPTY}\n")
    assert "torch==" not in text
    assert lock_engine.date_of(text) == lock_engine.LOCK_DATE


def test_no_solution_ends_with_what_uv_said(fake_uv: Path, tmp_path: Path) -> None:
    fake_uv.write_text("#!/bin/sh\necho no such version >&2\nexit 1\n")
    with pytest.raises(BuildError, match="could not resolve") as caught:
        lock_engine.make_lock(tmp_path, X86_64, "2026-11-15", network=BuildNetwork())
    assert caught.value.detail == "no such version"
    assert caught.value.exit_code == 5


def test_a_remade_lock_is_compared_and_written(
    fake_uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    source = resources() / "recipes"
    root = tmp_path / "resources"
    folder = root / "recipes" / "engines" / "locks" / "cuda-0.25"
    folder.mkdir(parents=True)
    (root / "recipes" / "engines" / "cuda-0.25.yaml").write_text(
        (source / "engines" / "cuda-0.25.yaml").read_text()
    )
    for name in ("requirements.in", "overrides.in"):
        (folder / name).write_text("")
    monkeypatch.setenv("SPARKDEPLOY_RESOURCES", str(root))
    first = lock_engine.remake_locks("cuda-0.25", None, settings)
    assert [item.path.name for item in first] == [
        f"{architecture}-py{python}.txt"
        for architecture in ("x86_64", "aarch64")
        for python in (311, 312, 313)
    ]
    assert all(item.is_new for item in first)
    lock_engine.write_locks(first)
    second = lock_engine.remake_locks("cuda-0.25", None, settings)
    assert all(item.differences == () and not item.is_new for item in second)
    (tmp_path / "solution").write_text(SOLUTION.replace("3.20", "3.21"))
    third = lock_engine.remake_locks("cuda-0.25", "2026-11-20", settings)
    assert third[0].differences == ("~ idna 3.20 -> 3.21",)
