"""The wheel that is built without any build tool."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.outside

PLUGIN_TREE = Path(__file__).resolve().parents[3] / "sparkdeploy" / "vllm_plugin"


@pytest.fixture(scope="module")
def backend() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheel_backend", PLUGIN_TREE / "wheel_backend.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_same_sources_give_the_same_bytes(backend: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    copy = tmp_path / "copy"
    shutil.copytree(PLUGIN_TREE, copy)
    first = backend.write_wheel(tmp_path / "a")
    second = backend.write_wheel(tmp_path / "b", source_tree=copy)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("name", ["announce.py", "turboquant/decode.cu"])
def test_one_byte_of_the_sources_changes_it(backend: ModuleType, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(PLUGIN_TREE, copy)
    first = backend.write_wheel(tmp_path, source_tree=copy).read_bytes()
    with (copy / "sparkdeploy_vllm" / name).open("a") as file:
        file.write("#")
    assert backend.write_wheel(tmp_path, source_tree=copy).read_bytes() != first


def test_uv_installs_it_offline_with_both_entry_points(backend: ModuleType, tmp_path: Path) -> None:
    wheel = backend.write_wheel(tmp_path)
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("uv is not beside this Python")
    target = tmp_path / "site"
    argv = [
        str(uv),
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--target",
        str(target),
        str(wheel),
    ]
    subprocess.run(argv, check=True, capture_output=True)
    entry_points = (target / "sparkdeploy_vllm-0.1.0.dist-info" / "entry_points.txt").read_text()
    assert "[vllm.general_plugins]\nsparkdeploy = sparkdeploy_vllm:register" in entry_points
    assert (target / "bin" / "sparkdeploy-guard").exists()
    source = Path("sparkdeploy_vllm", "turboquant", "decode.cu")
    assert (target / source).read_bytes() == (PLUGIN_TREE / source).read_bytes()


def test_code_and_kernels_travel_and_nothing_else(backend: ModuleType, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(PLUGIN_TREE, copy)
    kernels = copy / "sparkdeploy_vllm" / "turboquant"
    (kernels / "__pycache__").mkdir(exist_ok=True)
    (kernels / "__pycache__" / "int8_head.cpython-312.pyc").touch()
    (kernels / "decode.cubin").touch()
    names = zipfile.ZipFile(backend.write_wheel(tmp_path, source_tree=copy)).namelist()
    assert "sparkdeploy_vllm/guard/__main__.py" in names
    assert not [name for name in names if "cpu_fixups" in name]
    others = [name for name in names if not name.endswith(".py") and ".dist-info/" not in name]
    assert others == ["sparkdeploy_vllm/turboquant/decode.cu"]
