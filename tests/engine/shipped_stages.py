"""The stages of an engine that ships, for this machine.

`python -m tests.engine.shipped_stages` builds those of the CPU engine where they are missing, and
the small image that tests carry to engines of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from sparkdeploy.image.stages import Stage
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.facts import architecture
from sparkdeploy.node.host import DockerHost
from sparkdeploy.recipe.load import Library, load_engine
from sparkdeploy.settings import Settings, resources
from tests.engine.lab_stages import build
from tests.engine.small_python import small_python
from tests.fakes.plans import made_stages

REHEARSAL = "cpu-0.32"


def shipped_stages(engine: str = REHEARSAL) -> tuple[Stage, ...]:
    """Return them from the base up, as on a machine that reaches no registry."""
    shipped = load_engine(Library((resources() / "recipes",)), engine)
    return made_stages(shipped, "debian", architecture())


def build_all(
    host: DockerHost, stages: Iterable[Stage], settings: Settings | None = None
) -> list[tuple[Stage, ImageFact]]:
    """Build what is missing, each as `lab_stages.build` does."""
    return [(stage, build(host, stage, settings)) for stage in stages]


def engine_image(host: DockerHost, *, stage: str = "plugin") -> str:
    """The image of a stage of the CPU engine."""
    built = build_all(host, shipped_stages())
    return next(image.image_id for item, image in built if item.name == stage)


if __name__ == "__main__":
    with DockerHost(os.environ.get("DOCKER_HOST")) as here:
        build_all(here, shipped_stages())
        small_python(here, shipped_stages()[0].tag)
