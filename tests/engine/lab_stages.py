"""Stages from next to nothing, for tests of what happens to them."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.console import console
from sparkdeploy.image.build import build_stage
from sparkdeploy.image.context import ContextFile
from sparkdeploy.image.stages import Stage, fingerprint

if TYPE_CHECKING:
    from sparkdeploy.node.container import ImageFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.settings import Settings


def make_stage(name: str, dockerfile: str, below: Stage | None = None, **more: object) -> Stage:
    """Return a stage that nobody else has; its context holds a file `hello`."""
    inputs = {"dockerfile": dockerfile, "once": uuid.uuid4().hex}
    if below is not None:
        inputs["below"] = below.fingerprint
    mark = fingerprint(inputs)
    stage = Stage(
        name="plugin" if name == "plugin" else "engine",
        engine=f"lab-{mark[:8]}",
        base_source="registry",
        tag=f"sparkdeploy/lab-{name}:{mark[:16]}",
        fingerprint=mark,
        dockerfile=dockerfile,
        context=(ContextFile("hello", mark.encode()),),
        build_args={},
        below=below.tag if below else None,
        inputs=inputs,
    )
    return replace(stage, **more)  # type: ignore[arg-type]


def build(host: DockerHost, stage: Stage, settings: Settings) -> ImageFact:
    """Build a stage as `up` does."""
    with console.step(stage.tag) as step:
        return build_stage(host, stage, settings, step)
