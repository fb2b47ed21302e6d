"""A user who serves a twin with the real vLLM."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path

import requests
from huggingface_hub import snapshot_download

from sparkdeploy.checkpoint.tiny_model.build import build_tiny_model
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.node.host import DockerHost
from tests.engine.conftest import until
from tests.engine.program import Program
from tests.hub.double import Repo, hub_double
from tests.hub.xet import xet_by_get

TWIN_RECIPE = "tiny"
"""What `twin_user` has a recipe for."""
RUNNING = re.compile(r"^vllm:num_requests_running\{.*\} (\S+)$", re.MULTILINE)
TWIN_REPO, COMMIT = "lab/twin", "1" * 40


def unique_name(word: str) -> str:
    """Return a name for a deployment that no other run of the tests has on this engine."""
    return f"{word}-{uuid.uuid4().hex[:8]}"


def twin_user(root: Path, *, port: int, **serve: object) -> Program:
    """Return a user who has a twin in `root` and the recipe `tiny` for it, v2 on the CPU engine.

    `serve` replaces settings of the recipe's.
    """
    program = Program(root)
    _write_recipe(root, {"path": str(_made_twin(program))}, {"port": port, **serve})
    return program


def cached_twin_user(root: Path, *, port: int, stall_s: int, **serve: object) -> Program:
    """Return a user as `twin_user` does, whose twin the hub's own library has downloaded.

    Its large files are links into the store that repositories of the cache share. An engine that
    makes no progress for `stall_s` seconds is ended.
    """
    program = Program(root)
    with hub_double() as double, xet_by_get():
        double.repos[TWIN_REPO] = Repo({COMMIT: _made_twin(program)}, {"main": COMMIT}, is_xet=True)
        snapshot_download(
            TWIN_REPO, cache_dir=root / "hub", endpoint=double.endpoint, max_workers=1
        )
    limits = {"stall_s": stall_s}
    _write_recipe(root, {"repo": TWIN_REPO}, {"port": port, **serve}, limits)
    return program


def is_busy(port: int) -> bool:
    """Say whether a server of this machine works on a request; no where none listens."""
    with contextlib.suppress(requests.ConnectionError):
        page = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
        return any(float(running) > 0 for running in RUNNING.findall(page))
    return False


def wait_until_guarded(host: DockerHost, name: str) -> None:
    """Wait until the guard of a deployment knows that its server is healthy.

    Only then does it look at the counters, and what ends from then on is started again.
    """
    found = host.find_container(f"sparkdeploy-{name}")
    assert found is not None

    def looks() -> int:
        return b"".join(host.logs(found.container_id)).count(b'"GET /metrics ')

    before = looks()
    until(lambda: looks() > before)


def _made_twin(program: Program) -> Path:
    twin = program.root / "twin"
    build_tiny_model(twin, TinyShape(), seed=20261121)
    return twin


def _write_recipe(
    root: Path,
    model: Mapping[str, str],
    serve: Mapping[str, object],
    limits: Mapping[str, int] | None = None,
) -> None:
    recipes = root / "config" / "recipes"
    recipes.mkdir(parents=True)
    content = {
        "schema": 1,
        "name": TWIN_RECIPE,
        "title": "v2 on a twin and a CPU",
        "extends": "v2",
        "engine": "cpu-0.32",
        "model": model,
        "serve": {
            "attention_backend": None,
            "max_model_len": 1024,
            "enforce_eager": True,
            "enable_prefix_caching": False,
            **serve,
        },
        "limits": {"memory_floor_gib": 1, "startup_timeout_s": 600, **(limits or {})},
    }
    # JSON is YAML too.
    (recipes / f"{TWIN_RECIPE}.yaml").write_text(json.dumps(content))
