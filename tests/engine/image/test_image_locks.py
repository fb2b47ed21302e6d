"""The committed locks against the index: made anew they are the same, and everything installs."""

import subprocess
import sys
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import pytest

from sparkdeploy.image import lock
from sparkdeploy.image.lock import OLDEST_GLIBC
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import load_settings, resources
from tools.lock_engine import PYTHONS, RemadeLock, date_of, find_uv, remake_locks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
INDEX_LAG = timedelta(days=2)
ENGINES = ("cuda-0.25", "cuda-0.33")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lock_made_anew_is_the_committed_one(engine: str) -> None:
    """An index may have lacked, on the lock's day, what was published in the days before it."""
    remade = remake_locks(engine, None, load_settings())
    assert len(remade) == len(lock.ARCHITECTURES) * len(PYTHONS)
    other = changes(remade)
    if other:
        days = {date_of(item.path.read_text()) for item in remade} - {None}
        earlier = date.fromisoformat(str(min(map(str, days)))) - INDEX_LAG
        other &= changes(remake_locks(engine, earlier.isoformat(), load_settings()))
    assert other == set()


def changes(remade: Sequence[RemadeLock]) -> set[tuple[str, str]]:
    """Return each lock with each package in it that is another one in the lock made anew."""
    return {(item.path.name, line.split()[1]) for item in remade for line in item.differences}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("architecture", lock.ARCHITECTURES)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_package_of_a_lock_has_a_wheel_for_its_platform(
    engine: str, architecture: lock.Architecture, python: str, tmp_path: Path
) -> None:
    packages = lock.lock_files(
        load_engine(Library((resources() / "recipes",)), engine),
        architecture=architecture,
        resources=resources(),
        python=python,
    )["packages.txt"]
    build = load_settings().build
    argv = [
        str(find_uv()), "pip", "install", "--dry-run", "--no-config", "--no-deps",
        "--only-binary", ":all:", "--require-hashes", "--requirement", str(packages),
        "--python-version", python, "--python-platform", f"{architecture}-{OLDEST_GLIBC}",
        "--target", str(tmp_path / "nowhere"), "--python", sys.executable,
    ]  # fmt: skip
    environment = {"HOME": str(tmp_path)}
    if build.ca_bundle is not None:
        environment["SSL_CERT_FILE"] = str(build.ca_bundle)
    if build.index_url is not None:
        environment["UV_DEFAULT_INDEX"] = build.index_url
    done = subprocess.run(
        argv, capture_output=True, text=True, env={**environment, **build.proxies}, check=False
    )
    assert done.returncode == 0, done.stderr
    pins = [package.pin for package in lock.read_packages(packages.read_text())]
    wanted = {(pin.name, pin.version) for pin in pins}
    found = {
        tuple(line.removeprefix(" + ").split("==", 1))
        for line in done.stderr.splitlines()
        if line.startswith(" + ")
    }
    assert found == wanted
