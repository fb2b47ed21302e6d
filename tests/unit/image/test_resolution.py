"""Making locks: what uv is asked, and what becomes of its answer."""

import itertools
import stat
from pathlib import Path

import pytest

from sparkdeploy.errors import BuildError
from sparkdeploy.image.lock import LockedPackage, PackagePin, WheelPlatform
from sparkdeploy.settings import BuildNetwork, resources
from tools import lock_engine

from .conftest import MakeSettings

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
def fake_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A uv that writes one solution and notes its environment."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "uv"
    (tmp_path / "solution").write_text(SOLUTION)
    program.write_text(
        f'#!/bin/sh\nenv > {tmp_path}/seen\nfor last; do :; done; cp {tmp_path}/solution "$last"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return program


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
    fake_uv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_settings: MakeSettings
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
    settings = make_settings(BuildNetwork())
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
