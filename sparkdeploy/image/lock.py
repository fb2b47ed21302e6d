"""The locks of an engine: which Python packages, in which version, with which hash.

Read by every plan; made anew by uv, for one platform and one Python at a time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sparkdeploy import shell
from sparkdeploy.errors import BuildError, NodeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.settings import BuildNetwork

Architecture = Literal["x86_64", "aarch64"]

ARCHITECTURES: tuple[Architecture, ...] = ("x86_64", "aarch64")
PYTHONS = ("3.11", "3.12", "3.13")
"""What the bases in use bring along: Debian 12, Ubuntu 24.04, Debian 13."""
LOCK_DATE = "2026-11-15"
"""Packages that were published later than this day do not exist for the shipped locks."""
OLDEST_GLIBC = "manylinux_2_34"
"""What every base the engines name can load."""
COMPILE_TIMEOUT_S = 600
_AS_OF = re.compile(r"as of (\d{4}-\d{2}-\d{2})\.")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s\\;]+)")


@dataclass(frozen=True, slots=True)
class PackagePin:
    name: str
    """Normalised as indexes compare names (PEP 503): lower case, hyphens."""
    version: str


@dataclass(frozen=True, slots=True)
class LockedPackage:
    pin: PackagePin
    hashes: frozenset[str] = frozenset()
    """sha256 in hex; empty where no file was at hand when the lock was made."""


@dataclass(frozen=True, slots=True)
class WheelPlatform:
    architecture: str
    python: str

    def pin_of(self, filename: str) -> PackagePin | None:
        """Return what a wheel file holds, or None when this platform or Python cannot use it."""
        parts = filename.removesuffix(".whl").split("-")
        if not filename.endswith(".whl") or len(parts) not in {5, 6}:
            return None
        fits_platform = any(
            platform == "any" or (platform.endswith(self.architecture) and "musl" not in platform)
            for platform in parts[-1].split(".")
        )
        if not fits_platform or not any(self._fits(tag, parts[-2]) for tag in parts[-3].split(".")):
            return None
        return PackagePin(_normalised(parts[0]), parts[1])

    def _fits(self, tag: str, abi: str) -> bool:
        """Code for one release fits that release; stable and pure code fits later ones too."""
        minor = int(self.python.rpartition(".")[2])
        language, version = tag[:3], tag[3:]
        if tag in {"py3", f"cp3{minor}"}:
            return True
        is_lasting = language == "py3" or (language == "cp3" and abi == "abi3")
        return is_lasting and version.isdigit() and int(version) <= minor


def lock_files(
    engine: Engine, *, architecture: Architecture, resources: Path, python: str | None = None
) -> dict[str, Path]:
    """Return what `lock_paths` does; raise BuildError when one of the files is missing."""
    files = lock_paths(engine, architecture=architecture, resources=resources, python=python)
    for path in files.values():
        if not path.is_file():
            raise BuildError(
                f"engine {engine.name} has no lock for {architecture} and Python"
                f" {python or python_of(engine)}: {path} is missing",
                hint="`sparkdeploy image lock ENGINE` makes the locks of an engine from wheels;"
                " `lock:` in an engine names another engine's",
            )
    return files


def lock_paths(
    engine: Engine, *, architecture: Architecture, resources: Path, python: str | None = None
) -> dict[str, Path]:
    """Return the files of a lock, there or not yet, by their names in the build context.

    `python` is the base's when left out. Raises BuildError for engines without a base.
    """
    folder = resources / "recipes" / "engines" / "locks"
    name = engine.lock or engine.name
    stem = f"{architecture}-py{(python or python_of(engine)).replace('.', '')}"
    files = {"packages.txt": folder / name / f"{stem}.txt", "uv.txt": folder / "uv.txt"}
    if engine.kind in {"cpu", "source"}:
        # They take torch from PyTorch's own index, with a lock of its own.
        files["torch.txt"] = folder / name / f"{stem}-torch.txt"
    return files


def python_of(engine: Engine) -> str:
    if engine.base is None:
        raise BuildError(f"engine {engine.name} has no base, so it has no lock")
    return engine.base.python


def read_packages(text: str) -> tuple[LockedPackage, ...]:
    return tuple(
        LockedPackage(
            PackagePin(_normalised(match["name"]), match["version"]),
            frozenset(_HASH.findall(line)),
        )
        for line in text.replace("\\\n", " ").splitlines()
        if (match := _PINNED.match(line))
    )


def read_pins(text: str) -> tuple[PackagePin, ...]:
    return tuple(package.pin for package in read_packages(text))


def unverified(engine: str, architecture: str, packages: Iterable[LockedPackage]) -> str:
    """Return the warning about packages without a hash; empty where each has one."""
    pins = [package.pin for package in packages if not package.hashes]
    if not pins:
        return ""
    named = ", ".join(f"{pin.name}=={pin.version}" for pin in pins)
    have, they = ("has", "it") if len(pins) == 1 else ("have", "them")
    text = f"{named} for {architecture} {have} no hash in the lock: what the index sends is taken"
    if any(pin.version.endswith("+cpu") for pin in pins):
        text += f"; with the wheel in `wheelhouse`, `sparkdeploy image lock {engine}` pins {they}"
    return text


def find_wheel(
    package: LockedPackage, folders: Iterable[Path], platform: WheelPlatform
) -> Path | None:
    """Return a wheel of these folders with a hash of the lock."""
    for path, pin in wheels_in(folders, platform):
        if pin == package.pin and (not package.hashes or sha256_of(path) in package.hashes):
            return path
    return None


def wheels_in(
    folders: Iterable[Path], platform: WheelPlatform
) -> Iterator[tuple[Path, PackagePin]]:
    for path in (path for folder in folders for path in sorted(folder.glob("*.whl"))):
        if pin := platform.pin_of(path.name):
            yield path, pin


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def differences(old: str, new: str) -> Iterator[str]:
    """Yield what changed between two locks, one package a line; nothing when nothing did."""
    before = {package.pin.name: package for package in read_packages(old)}
    after = {package.pin.name: package for package in read_packages(new)}
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


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


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
    uv: Path, inputs: Path, platform: WheelPlatform, *, date: str, output: Path
) -> tuple[str, ...]:
    return (
        str(uv), "pip", "compile", str(inputs / "requirements.in"),
        "--override", str(inputs / "overrides.in"),
        "--exclude-newer", date,
        "--python-version", platform.python,
        "--python-platform", f"{platform.architecture}-{OLDEST_GLIBC}",
        "--only-binary", ":all:",
        "--no-config", "--quiet",
        "--format", "pylock.toml",
        "--output-file", str(output),
    )  # fmt: skip


def make_lock(
    inputs: Path,
    platform: WheelPlatform,
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
    return variables | index_variables(network)


def index_variables(network: BuildNetwork) -> dict[str, str]:
    variables: dict[str, str] = {}
    if network.index_url:
        variables |= {"UV_DEFAULT_INDEX": network.index_url, "PIP_INDEX_URL": network.index_url}
    if network.extra_index_urls:
        urls = " ".join(network.extra_index_urls)
        variables |= {"UV_INDEX": urls, "PIP_EXTRA_INDEX_URL": urls}
    return variables
