"""Makes an engine's locks anew with uv, for both platforms and every Python.

Run in a checkout: python tools/lock_engine.py ENGINE [--date DAY] [--check]. Without a date each
lock is made for the day its head states. --check writes nothing and exits 9 when a lock differs.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import re
import shlex
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import shell
from sparkdeploy.checkpoint import durable
from sparkdeploy.errors import BuildError, ChangesPendingError, NodeError, SparkdeployError
from sparkdeploy.image import lock, network
from sparkdeploy.recipe.load import library, load_engine
from sparkdeploy.settings import load_settings, resources
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.settings import BuildNetwork, Settings

LOCK_DATE = "2026-11-15"
"""Packages that were published later than this day do not exist for the shipped locks."""
COMPILE_TIMEOUT_S = 600
PYTHONS = ("3.11", "3.12", "3.13")
"""What the bases in use bring along: Debian 12, Ubuntu 24.04, Debian 13."""
FROM_ELSEWHERE = {"cpu": ("torch",), "source": ("torch", "vllm")}
"""What is not taken from the package index: PyTorch's own builds, and vLLM where it is compiled."""
_AS_OF = re.compile(r"as of (\d{4}-\d{2}-\d{2})\.")


def main() -> int:
    """Print what differs and write it; return the exit code of the first failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine")
    parser.add_argument("--date", type=datetime.date.fromisoformat, metavar="YYYY-MM-DD")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    day = asked.date.isoformat() if asked.date else None
    try:
        remade = remake_locks(asked.engine, day, load_settings())
        for item in remade:
            state = "new" if item.is_new else f"{len(item.differences)} differ"
            console.answer(f"{item.path.name}: {state if item.differences else 'reproduced'}")
            for line in item.differences:
                console.answer(f"  {line}")
        if not asked.check:
            write_locks(remade)
    except SparkdeployError as error:
        console.error(error.message, hint=error.hint, detail=error.detail)
        return error.exit_code
    differs = any(item.differences for item in remade)
    return ChangesPendingError.exit_code if asked.check and differs else 0


@dataclass(frozen=True, slots=True)
class RemadeLock:
    path: Path
    text: str
    differences: tuple[str, ...]
    """One package a line; empty when the file is what it was."""
    is_new: bool


def remake_locks(name: str, date: str | None, settings: Settings) -> tuple[RemadeLock, ...]:
    """Resolve an engine for both platforms and every Python; nothing is written.

    Without a date each lock is made for the day its head states. Raises BuildError for engines
    without a lock of their own or when uv finds no solution, NodeError without uv.
    """
    engine = load_engine(library(settings), name)
    own_python = lock.python_of(engine)
    folder = _lock_inputs(engine)
    network.refuse_credentials(settings)
    find_uv()
    made: list[RemadeLock] = []
    for architecture in lock.ARCHITECTURES:
        for python in PYTHONS if engine.kind == "wheel" else (own_python,):
            with console.step(f"lock {folder.name} {architecture} Python {python}"):
                files = lock.lock_paths(
                    engine, architecture=architecture, resources=resources(), python=python
                )
                day = date or date_of(_text_of(files["packages.txt"]))
                platform = lock.WheelPlatform(architecture, python)
                made += _remake(engine, platform, day or LOCK_DATE, files, settings)
    return tuple(made)


def _lock_inputs(engine: Engine) -> Path:
    if engine.lock is not None:
        raise BuildError(
            f"engine {engine.name} uses the lock of {engine.lock}",
            hint=f"python tools/lock_engine.py {engine.lock}",
        )
    folder = resources() / "recipes" / "engines" / "locks" / engine.name
    if not (folder / "requirements.in").is_file():
        raise BuildError(
            f"engine {engine.name} has nothing to make a lock from: {folder}/requirements.in is"
            " missing",
            hint=f"write it, with an overrides.in beside it (like those of cuda-0.25) in {folder}",
        )
    return folder


def _remake(
    engine: Engine,
    platform: lock.WheelPlatform,
    date: str,
    files: Mapping[str, Path],
    settings: Settings,
) -> Iterator[RemadeLock]:
    packages, torch = files["packages.txt"], files.get("torch.txt")
    without = FROM_ELSEWHERE.get(engine.kind, ())
    build = settings.build
    text = make_lock(packages.parent, platform, date, network=build, without=without)
    yield _compared(packages, text)
    if engine.kind == "cpu" and torch is not None and engine.torch is not None:
        package = lock.LockedPackage(lock.PackagePin("torch", f"{engine.torch}+cpu"))
        wheel = find_wheel(package, build.find_links, platform)
        # A machine without PyTorch's wheel cannot confirm its hash, and does not take it away.
        if wheel is not None or not torch.is_file():
            yield _compared(torch, make_torch_lock(engine.torch, wheel))


def find_wheel(
    package: lock.LockedPackage, folders: Iterable[Path], platform: lock.WheelPlatform
) -> Path | None:
    """Return a wheel of these folders with a hash of the lock."""
    for path, pin in lock.wheels_in(folders, platform):
        if pin == package.pin and (not package.hashes or sha256_of(path) in package.hashes):
            return path
    return None


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _compared(path: Path, text: str) -> RemadeLock:
    before = _text_of(path)
    return RemadeLock(path, text, tuple(differences(before, text)), is_new=before == "")


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def write_locks(remade: tuple[RemadeLock, ...]) -> None:
    """Put the locks that differ in their place; raise NodeError where that may not be written."""
    for item in remade:
        try:
            if item.differences or item.is_new:
                durable.write_text(item.path, item.text)
        except OSError as error:
            raise NodeError(
                f"{item.path} cannot be written: {error.strerror}",
                hint="set SPARKDEPLOY_RESOURCES to a checkout of your own",
            ) from error


def differences(old: str, new: str) -> Iterator[str]:
    """Yield what changed between two locks, one package a line; nothing when nothing did."""
    before = {package.pin.name: package for package in lock.read_packages(old)}
    after = {package.pin.name: package for package in lock.read_packages(new)}
    for name in sorted(before.keys() | after.keys()):
        if name not in before:
            yield f"+ {name} {after[name].pin.version}"
        elif name not in after:
            yield f"- {name} {before[name].pin.version}"
        elif before[name].pin != after[name].pin:
            yield f"~ {name} {before[name].pin.version} -> {after[name].pin.version}"
        elif before[name].hashes != after[name].hashes:
            added = len(after[name].hashes - before[name].hashes)
            gone = len(before[name].hashes - after[name].hashes)
            yield f"# {name} {after[name].pin.version}: {added} hashes added, {gone} gone"


def find_uv() -> Path:
    """Return uv from PATH or from beside this Python; raise NodeError when there is none."""
    found = shell.which("uv") or Path(sys.executable).with_name("uv")
    if not found.is_file():
        raise NodeError(
            "uv is not installed, and only uv resolves for another platform",
            hint=f"{shlex.quote(sys.executable)} -I -m pip install uv",
        )
    return found


def date_of(text: str) -> str | None:
    found = _AS_OF.search(text)
    return found[1] if found else None


def compile_argv(
    uv: Path, inputs: Path, platform: lock.WheelPlatform, *, date: str, output: Path
) -> tuple[str, ...]:
    return (
        str(uv), "pip", "compile", str(inputs / "requirements.in"),
        "--override", str(inputs / "overrides.in"),
        "--exclude-newer", date,
        "--python-version", platform.python,
        "--python-platform", f"{platform.architecture}-{lock.OLDEST_GLIBC}",
        "--only-binary", ":all:",
        "--no-config", "--quiet",
        "--format", "pylock.toml",
        "--output-file", str(output),
    )  # fmt: skip


def make_lock(
    inputs: Path,
    platform: lock.WheelPlatform,
    date: str,
    *,
    network: BuildNetwork,
    without: Sequence[str] = (),
) -> str:
    """Resolve a folder's requirements for one platform; return the lock's text.

    What was published after `date` does not exist for it. Every line has the hashes of the wheels
    that fit the platform, and of nothing else. `without` names distributions that come from
    elsewhere. Raises NodeError without uv and BuildError when uv finds no solution or no index.
    """
    uv = find_uv()
    with tempfile.TemporaryDirectory(prefix="sparkdeploy-lock-") as scratch:
        output = Path(scratch) / "pylock.toml"
        argv = compile_argv(uv, inputs, platform, date=date, output=output)
        done = shell.run(argv, timeout_s=COMPILE_TIMEOUT_S, env=_uv_environment(network))
        if done.exit_code != 0:
            raise BuildError(
                f"uv could not resolve {inputs.name} for {platform.architecture} and Python"
                f" {platform.python} as of {date}",
                detail="\n".join(done.stderr.splitlines()[-20:]),
                hint="does the package index answer? `index_url` in config.yaml names another",
            )
        resolved = tomllib.loads(output.read_text(encoding="utf-8"))
    header = (
        f"# Made from {inputs.name}/requirements.in and overrides.in for {platform.architecture},\n"
        f"# Python {platform.python}, as of {date}. Not to be edited by hand.\n"
    )
    entries = (
        _lock_entry(
            f"{package['name']}=={package['version']}",
            *(wheel["hashes"]["sha256"] for wheel in package["wheels"]),
        )
        for package in resolved["packages"]
        if package["name"] not in without
    )
    return header + "".join(entries)


def make_torch_lock(version: str, wheel: Path | None) -> str:
    """Return the lock of PyTorch's CPU build, with the hash of the wheel that was seen."""
    missing = "No hash: no wheel of this build was at hand when the lock was made."
    head, hashes = (wheel.name, [sha256_of(wheel)]) if wheel else (missing, [])
    return f"# {head}\n{_lock_entry(f'torch=={version}+cpu', *hashes)}"


def _lock_entry(pin: str, *hashes: str) -> str:
    return " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in sorted(hashes))]) + "\n"


def _uv_environment(network: BuildNetwork) -> dict[str, str]:
    """Return uv's environment: it does not read the configuration of pip that settings do."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    if network.ca_bundle is not None:
        variables["SSL_CERT_FILE"] = str(network.ca_bundle)
    return variables | lock.index_variables(network)


if __name__ == "__main__":
    sys.exit(main())
