"""Make an engine's locks anew, and say what differs from the ones that are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.console import console
from sparkdeploy.errors import BuildError, NodeError
from sparkdeploy.image import lock, network, resolution
from sparkdeploy.image.resolution import Target
from sparkdeploy.recipe.library import library
from sparkdeploy.recipe.load import load_engine
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkdeploy.recipe.schema import Engine
    from sparkdeploy.settings import Settings

FROM_ELSEWHERE = {"cpu": ("torch",), "source": ("torch", "vllm")}
"""What is not taken from the package index: PyTorch's own builds, and vLLM where it is compiled."""


@dataclass(frozen=True, slots=True)
class Remade:
    """One lock file as it would be today."""

    path: Path
    text: str
    differences: tuple[str, ...]
    """One package a line; empty when the file is what it was."""
    is_new: bool


def remake_locks(name: str, date: str | None, settings: Settings) -> tuple[Remade, ...]:
    """Resolve an engine for both platforms and every Python; nothing is written.

    Without a date each lock is made for the day its head states. Raises BuildError for engines
    without a lock of their own or when uv finds no solution, NodeError without uv.
    """
    engine = load_engine(library(settings), name)
    folder = _inputs(engine)
    network.refuse_credentials(settings)
    resolution.find_uv()
    made: list[Remade] = []
    for architecture in lock.ARCHITECTURES:
        for python in _pythons(engine):
            with console.step(f"lock {folder.name} {architecture} Python {python}"):
                files = lock.lock_paths(
                    engine, architecture=architecture, resources=resources(), python=python
                )
                target = Target(architecture, python, date or _date(files.packages))
                made += _remake(engine, target, files, settings)
    return tuple(made)


def write_locks(remade: tuple[Remade, ...]) -> None:
    """Put the locks that differ in their place; raise NodeError where that may not be written."""
    for item in remade:
        if not (item.differences or item.is_new):
            continue
        fresh = item.path.with_suffix(".new")
        try:
            fresh.write_text(item.text, encoding="utf-8")
            fresh.replace(item.path)
        except OSError as error:
            raise NodeError(
                f"{item.path} cannot be written: {error.strerror}",
                hint="set SPARKDEPLOY_RESOURCES to a checkout of your own",
            ) from error


def _inputs(engine: Engine) -> Path:
    if engine.lock is not None:
        raise BuildError(
            f"engine {engine.name} uses the lock of {engine.lock}",
            hint=f"sparkdeploy image lock {engine.lock}",
        )
    lock.python_of(engine)
    folder = resources() / "recipes" / "engines" / "locks" / engine.name
    if not (folder / "requirements.in").is_file():
        raise BuildError(
            f"engine {engine.name} has nothing to make a lock from: {folder}/requirements.in is"
            " missing",
            hint=f"write it, with an overrides.in beside it (like those of cuda-0.25) in {folder}",
        )
    return folder


def _pythons(engine: Engine) -> tuple[str, ...]:
    return lock.PYTHONS if engine.kind == "wheel" else (lock.python_of(engine),)


def _date(path: Path) -> str:
    found = resolution.date_of(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found or resolution.LOCK_DATE


def _remake(
    engine: Engine, target: Target, files: lock.LockFiles, settings: Settings
) -> Iterator[Remade]:
    without = FROM_ELSEWHERE.get(engine.kind, ())
    text = resolution.make_lock(
        files.packages.parent, target, network=settings.build, without=without
    )
    yield _compared(files.packages, text)
    if engine.kind == "cpu" and files.torch is not None and engine.torch is not None:
        wheel = resolution.find_torch_wheel(engine.torch, target, settings.build.find_links)
        known = files.torch.is_file()
        # A machine without PyTorch's wheel cannot confirm its hash, and does not take it away.
        if wheel is not None or not known:
            yield _compared(files.torch, resolution.make_torch_lock(engine.torch, wheel))


def _compared(path: Path, text: str) -> Remade:
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    return Remade(path, text, lock.differences(before, text), is_new=before == "")
