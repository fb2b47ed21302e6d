"""Loaders and kernels that are packages of their own: whether an engine's lock holds them."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from sparkdeploy.recipe.arguments import given_of
from sparkdeploy.recipe.rules import Mistake
from sparkdeploy.settings import resources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.schema import Recipe

PACKAGE_OF = {
    ("--linear-backend", "b12x"): "b12x",
    ("--load-format", "fastsafetensors"): "fastsafetensors",
    ("--load-format", "instanttensor"): "instanttensor",
    ("--load-format", "runai_streamer"): "runai-model-streamer",
    ("--load-format", "runai_streamer_sharded"): "runai-model-streamer",
    ("--load-format", "tensorizer"): "tensorizer",
    ("--moe-backend", "b12x"): "b12x",
}
"""The optional packages of vLLM's own metadata (0.33.0), by what asks for them."""


def package_mistakes(recipe: Recipe, engine: Engine) -> Iterator[Mistake]:
    """Yield what a recipe asks of an engine without its package; images are not looked into."""
    held = packages_of(engine.lock or engine.name)
    if engine.kind == "image" or not held:
        return
    for given in given_of(recipe.serve):
        package = PACKAGE_OF.get((given.form, given.values[0] if given.values else ""))
        if package is not None and package not in held:
            yield Mistake(
                given.path,
                f"{given.form} {given.values[0]} takes the package {package}, which engine "
                f"{engine.name} does not hold",
                _instead(package, given.form),
            )


@functools.cache
def packages_of(lock: str) -> frozenset[str]:
    """Return the packages of a lock, of whatever platform; empty where there is none."""
    folder = resources() / "recipes" / "engines" / "locks" / lock
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*-py*.txt"))]
    return frozenset(
        name for text in texts for name in re.findall(r"^([A-Za-z0-9_.-]+)==", text, re.MULTILINE)
    )


def _instead(package: str, form: str) -> str:
    locks = resources() / "recipes" / "engines" / "locks"
    names = [path.name for path in sorted(locks.iterdir()) if package in packages_of(path.name)]
    others = "safetensors" if form == "--load-format" else "auto"
    choice = f"choose {form} {others}"
    return f"set engine to {names[-1]}, or {choice}" if names else choice
