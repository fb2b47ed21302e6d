"""The locks of an engine: which Python packages, in which version, with which hash.

Read by every plan; tools/lock_engine.py makes them anew.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)

from sparkdeploy.errors import BuildError
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.settings import BuildNetwork

Architecture = Literal["x86_64", "aarch64"]

ARCHITECTURES: tuple[Architecture, ...] = ("x86_64", "aarch64")
OLDEST_GLIBC = "manylinux_2_34"
"""What every base the engines name can load."""
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
        try:
            name, version, _, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            return None
        fits = not tags.isdisjoint(_supported_tags(self.architecture, self.python))
        return PackagePin(name, str(version)) if fits else None


@functools.cache
def _supported_tags(architecture: str, python: str) -> frozenset[Tag]:
    """Return the tags of wheels that a base can use; this process may run on another platform."""
    version = (3, int(python.rpartition(".")[2]))
    interpreter = f"cp3{version[1]}"
    newest = int(OLDEST_GLIBC.rpartition("_")[2])
    kinds = [f"manylinux_2_{minor}" for minor in range(newest, 4, -1)]
    kinds += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
    platforms = [f"{kind}_{architecture}" for kind in kinds]
    return frozenset(
        (
            *cpython_tags(version, [interpreter], platforms),
            *compatible_tags(version, interpreter, platforms),
        )
    )


def lock_files(
    engine: Engine, *, architecture: Architecture, resources: Path, python: str | None = None
) -> dict[str, Path]:
    """Return what `lock_paths` does; raise BuildError when one of the files is missing."""
    files = lock_paths(engine, architecture=architecture, resources=resources, python=python)
    missing = next((path for path in files.values() if not path.is_file()), None)
    if missing is not None:
        raise BuildError(
            f"engine {engine.name} has no lock for {architecture} and Python"
            f" {python or python_of(engine)}: {missing} is missing",
            hint="`lock:` in an engine names another engine's; in a checkout"
            " tools/lock_engine.py makes those of an engine from wheels",
        )
    return files


def lock_paths(
    engine: Engine, *, architecture: Architecture, resources: Path, python: str | None = None
) -> dict[str, Path]:
    """Return the files of a lock, there or not yet, by their names in the build context."""
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
            PackagePin(
                canonicalize_name(match["name"]),
                canonicalize_version(match["version"], strip_trailing_zero=False),
            ),
            frozenset(_HASH.findall(line)),
        )
        for line in text.replace("\\\n", " ").splitlines()
        if (match := _PINNED.match(line))
    )


def unverified(architecture: str, packages: Iterable[LockedPackage]) -> str:
    """Return the warning about packages without a hash; empty where each has one."""
    pins = [package.pin for package in packages if not package.hashes]
    if not pins:
        return ""
    named = ", ".join(f"{pin.name}=={pin.version}" for pin in pins)
    have, they = ("has", "it") if len(pins) == 1 else ("have", "them")
    text = f"{named} for {architecture} {have} no hash in the lock: what the index sends is taken"
    if any(pin.version.endswith("+cpu") for pin in pins):
        text += f"; with the wheel in `wheelhouse`, tools/lock_engine.py of a checkout pins {they}"
    return text


def wheels_in(
    folders: Iterable[Path], platform: WheelPlatform
) -> Iterator[tuple[Path, PackagePin]]:
    for path in (path for folder in folders for path in sorted(folder.glob("*.whl"))):
        if pin := platform.pin_of(path.name):
            yield path, pin


def index_variables(network: BuildNetwork) -> dict[str, str]:
    variables: dict[str, str] = {}
    if network.index_url:
        variables |= {"UV_DEFAULT_INDEX": network.index_url, "PIP_INDEX_URL": network.index_url}
    if network.extra_index_urls:
        urls = " ".join(network.extra_index_urls)
        variables |= {"UV_INDEX": urls, "PIP_EXTRA_INDEX_URL": urls}
    return variables
