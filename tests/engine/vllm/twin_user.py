"""A user who serves a twin with the real vLLM."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

from tests.engine.program import Program

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TWIN_RECIPE = "tiny"
"""What `twin_user` has a recipe for."""


def unique_name(word: str) -> str:
    """Return a name for a deployment that no other run of the tests has on this engine."""
    return f"{word}-{uuid.uuid4().hex[:8]}"


def twin_user(root: Path, *, port: int, **serve: object) -> Program:
    """Return a user who has a twin in `root` and the recipe `tiny` for it, v2 on the CPU engine.

    `serve` replaces settings of the recipe's.
    """
    program = Program(root)
    twin = root / "twin"
    made = program.run("checkpoint", "twin", str(twin))
    assert made.returncode == 0, made.stderr
    recipes = root / "config" / "recipes"
    recipes.mkdir(parents=True)
    # JSON is YAML too.
    text = json.dumps(_twin_recipe(twin, {"port": port, **serve}))
    (recipes / f"{TWIN_RECIPE}.yaml").write_text(text)
    return program


def _twin_recipe(twin: Path, serve: Mapping[str, object]) -> dict[str, object]:
    return {
        "schema": 1,
        "name": TWIN_RECIPE,
        "title": "v2 on a twin and a CPU",
        "extends": "v2",
        "engine": "cpu-0.32",
        "model": {"path": str(twin)},
        "serve": {
            "attention_backend": None,
            "max_model_len": 1024,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            **serve,
        },
        "limits": {"memory_floor_gib": 1, "startup_timeout_s": 600},
    }
