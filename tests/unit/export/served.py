"""Deployments as exports see them."""

from __future__ import annotations

from pathlib import Path

from sparkdeploy.deploy.serving import ServedDeployment
from sparkdeploy.recipe.answers import EMBEDDINGS

MAIN = ServedDeployment(
    name="main",
    recipe="v2",
    port=8000,
    models=("qwen", "qwen-122b"),
    key_file=Path("/home/ada/.local/state/sparkdeploy/keys/main"),
    context_tokens=262_144,
)
SMALL = ServedDeployment(name="small", recipe="gpt-oss-120b", port=8001, models=("gpt-oss",))
EMBEDDER = ServedDeployment(
    name="embedder",
    recipe="qwen3-vl-embedding",
    port=8002,
    models=("Qwen/Embedding",),
    context_tokens=8192,
    answers=EMBEDDINGS,
)
