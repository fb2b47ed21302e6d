"""The locks of an engine: which Python packages, in which version, with which hash."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sparkdeploy.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from sparkdeploy.recipe.schema import Engine

Architecture = Literal["x86_64", "aarch64"]

ARCHITECTURES: tuple[Architecture, ...] = ("x86_64", "aarch64")
PYTHONS = ("3.11", "3.12", "3.13")
"""What the bases in use bring along: Debian 12, Ubuntu 24.04, Debian 13."""
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_PINNED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s\\;]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pin:
    """One distribution in one version."""

    name: str
    """Normalised: lower case, hyphens."""
    version: str


@dataclass(frozen=True, slots=True)
class LockFiles:
    """Where the lock of one engine stands for one platform and Python."""

    packages: Path
    uv: Path
    """uv itself, shared by all engines."""
    torch: Path | None
    """CPU and source engines take torch from PyTorch's own index, with a lock of its own."""

    def all(self) -> tuple[tuple[str, Path], ...]:
        """Return every file with its name in the build context."""
        files: list[tuple[str, Path]] = [("packages.txt", self.packages), ("uv.txt", self.uv)]
        if self.torch is not None:
            files.append(("torch.txt", self.torch))
        return tuple(files)


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One distribution of a lock: its version, and the files it may come from."""

    pin: Pin
    hashes: frozenset[str] = field(default_factory=frozenset)
    """sha256 in hex; empty where no file was at hand when the lock was made."""


def lock_files(
    engine: Engine, *, architecture: Architecture, resources: Path, python: str | None = None
) -> LockFiles:
    """Return the lock of an engine for its base's Python, or for another one.

    Raises BuildError when one of its files is missing.
    """
    files = lock_paths(engine, architecture=architecture, resources=resources, python=python)
    for _, path in files.all():
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
) -> LockFiles:
    """Return where the lock stands or would stand; raise BuildError for engines without one."""
    folder = resources / "recipes" / "engines" / "locks"
    name = engine.lock or engine.name
    stem = f"{architecture}-py{(python or python_of(engine)).replace('.', '')}"
    return LockFiles(
        packages=folder / name / f"{stem}.txt",
        uv=folder / "uv.txt",
        torch=folder / name / f"{stem}-torch.txt" if engine.kind in {"cpu", "source"} else None,
    )


def python_of(engine: Engine) -> str:
    """Return the base's Python; raise BuildError for engines without a base."""
    if engine.base is None:
        raise BuildError(f"engine {engine.name} has no base, so it has no lock")
    return engine.base.python


def read_packages(text: str) -> tuple[LockedPackage, ...]:
    """Return what a lock pins, with the hashes."""
    entries = text.replace("\\\n", " ").splitlines()
    return tuple(
        LockedPackage(Pin(normalised(match["name"]), match["version"]), _hashes(line))
        for line in entries
        if (match := _PINNED.match(line))
    )


def differences(old: str, new: str) -> tuple[str, ...]:
    """Return what changed between two locks, one package a line; empty when nothing did."""
    before, after = _by_name(old), _by_name(new)
    return tuple(_changes(before, after))


def read_pins(text: str) -> tuple[Pin, ...]:
    """Return what a lock pins."""
    return tuple(
        Pin(normalised(match["name"]), match["version"]) for match in _PINNED.finditer(text)
    )


def normalised(name: str) -> str:
    """Return a distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def wheel_pin(filename: str, *, architecture: str, python: str) -> Pin | None:
    """Return what a wheel file holds, or None when that platform or Python cannot use it."""
    parts = filename.removesuffix(".whl").split("-")
    if not filename.endswith(".whl") or len(parts) not in {5, 6}:
        return None
    tags, platforms = parts[-3].split("."), parts[-1].split(".")
    own = f"cp{python.replace('.', '')}"
    stable = parts[-2] == "abi3" and any(_is_at_most(tag, own) for tag in tags)
    pure = any(tag == "py3" or _is_at_most(tag, own.replace("cp", "py")) for tag in tags)
    fits_python = own in tags or stable or pure
    fits_platform = any(
        platform == "any" or (platform.endswith(architecture) and "musl" not in platform)
        for platform in platforms
    )
    if not (fits_python and fits_platform):
        return None
    return Pin(normalised(parts[0]), parts[1])


def _hashes(line: str) -> frozenset[str]:
    return frozenset(_HASH.findall(line))


def _by_name(text: str) -> dict[str, LockedPackage]:
    return {package.pin.name: package for package in read_packages(text)}


def _changes(
    before: Mapping[str, LockedPackage], after: Mapping[str, LockedPackage]
) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None and new is not None:
            yield f"+ {name} {new.pin.version}"
        elif new is None and old is not None:
            yield f"- {name} {old.pin.version}"
        elif old is not None and new is not None and old.pin != new.pin:
            yield f"~ {name} {old.pin.version} -> {new.pin.version}"
        elif old is not None and new is not None and old.hashes != new.hashes:
            added, gone = len(new.hashes - old.hashes), len(old.hashes - new.hashes)
            yield f"# {name} {new.pin.version}: {added} hashes added, {gone} gone"


def _is_at_most(tag: str, limit: str) -> bool:
    """Compare tags of one kind and major version: cp38 is at most cp311, py37 at most py311."""
    is_alike = tag[:3] == limit[:3] and tag[3:].isdigit()
    return is_alike and int(tag[3:]) <= int(limit[3:])
