"""Bring everything an engine's lock names into a folder, for builds without a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.console import console, format_bytes
from sparkdeploy.image import lock, network
from sparkdeploy.image.wheelhouse import Platform, Source, fetch_wheels
from sparkdeploy.recipe.library import library
from sparkdeploy.recipe.load import load_engine
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.settings import Settings


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    """A folder that holds a whole lock."""

    folder: Path
    wheels: tuple[Path, ...]

    @property
    def size_bytes(self) -> int:
        """Return the size of all wheels together."""
        return sum(path.stat().st_size for path in self.wheels)


def make_wheelhouse(
    name: str, folder: Path, settings: Settings, *, architecture: lock.Architecture
) -> Wheelhouse:
    """Fetch an engine's wheels, uv among them; raise BuildError when one cannot be had."""
    engine = load_engine(library(settings), name)
    network.refuse_credentials(settings)
    files = lock.lock_files(engine, architecture=architecture, resources=resources())
    packages = [
        package
        for _, path in files.all()
        for package in lock.read_packages(path.read_text(encoding="utf-8"))
    ]
    platform = Platform(architecture, lock.python_of(engine))
    with console.step(f"wheels of {name} for {architecture}") as step:
        done: list[int] = []

        def count(path: Path) -> None:
            done.append(path.stat().st_size)
            step.say(f"{len(done)} of {len(packages)}, {format_bytes(sum(done))}: {path.name}")

        wheels = fetch_wheels(packages, folder, platform, _source(settings, files), on_wheel=count)
    return Wheelhouse(folder, wheels)


def _source(settings: Settings, files: lock.LockFiles) -> Source:
    build = settings.build
    indexes = [build.index_url or settings.hosts.package_index, *build.extra_index_urls]
    if files.torch is not None:
        indexes.append(settings.hosts.torch_cpu_index)
    return Source(tuple(indexes), build.find_links, build.ca_bundle)
