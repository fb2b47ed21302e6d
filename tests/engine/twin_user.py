"""A user who serves a twin with the real vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.engine.program import Program

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = """\
schema: 1
name: faulty
title: v2 on a twin and a CPU
extends: v2
engine: cpu-0.32
model: {{path: {twin}}}
serve:
  port: {port}
  attention_backend: null
  max_model_len: 1024
  enforce_eager: true
  enable_prefix_caching: false
limits: {{memory_floor_gib: 1, startup_timeout_s: 600}}
"""


def twin_user(root: Path, *, port: int) -> Program:
    """Make a twin and the recipe `faulty` for it."""
    made = Program(root)
    twin = root / "twin"
    assert made.run("checkpoint", "twin", str(twin)).returncode == 0
    recipes = root / "config" / "recipes"
    recipes.mkdir(parents=True)
    (recipes / "faulty.yaml").write_text(RECIPE.format(twin=twin, port=port))
    return made
