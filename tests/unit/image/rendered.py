"""The Dockerfiles of every shipped engine, of other Pythons, adopted images, mods and guard."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkdeploy.image.mods import read_mod
from sparkdeploy.image.stages import Stage
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.mods import FoundMod
from tests.fakes.plans import made_stages
from tests.unit.image.conftest import LoadEngine

ENGINES = ("cpu-0.25", "cpu-0.32", "cuda-0.19", "cuda-0.25", "cuda-0.33")
STAGES = ("base", "engine", "plugin")
OTHER_PYTHONS = (("ubuntu:24.04", "3.12"), ("debian:trixie-slim", "3.13"))
ADOPTED = {"digest": "nvidia/vllm@sha256:" + "0" * 64, "id": "sha256:" + "1" * 64}


def rendered_dockerfiles(load: LoadEngine) -> dict[str, str]:
    """Return each Dockerfile by its name, such as `cuda-0.25.base`, without fingerprints."""
    return {name: _without_fingerprints(stage.dockerfile) for name, stage in _stages(load)}


def _stages(load: LoadEngine) -> Iterator[tuple[str, Stage]]:
    for name in ENGINES:
        yield from _named(name, load(name))
    shipped = load("cuda-0.25")
    assert shipped.base is not None
    for image, python in OTHER_PYTHONS:
        base = shipped.base.model_copy(update={"image": image, "python": python, "debian": None})
        engine = shipped.model_copy(update={"base": base})
        yield from list(_named(f"cuda-0.25-python-{python}", engine))[:2]
    for name, image in ADOPTED.items():
        adopted, _ = made_stages(load("image").model_copy(update={"image": image}))
        yield f"image-{name}.engine", adopted
    mods = [read_mod(FoundMod("", None, "true", needs_network=it)) for it in (False, True)]
    *_, offline, online, guard = made_stages(shipped, mods=mods, top="guard")
    yield from {"cuda-0.25.mod": offline, "cuda-0.25-network.mod": online}.items()
    yield "cuda-0.25.guard", guard


def _named(name: str, engine: Engine) -> Iterator[tuple[str, Stage]]:
    for index, stage in zip(STAGES, made_stages(engine), strict=True):
        yield f"{name}.{index}", stage


def _without_fingerprints(dockerfile: str) -> str:
    return re.sub(r"(sparkdeploy/\w+:)[0-9a-f]{16}", r"\1<fingerprint>", dockerfile)
