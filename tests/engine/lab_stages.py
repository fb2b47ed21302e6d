"""Stages from next to nothing, for tests of what happens to them."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sparkdeploy.errors import BuildError
from sparkdeploy.image.build import build_stage
from sparkdeploy.image.context import ContextFile
from sparkdeploy.image.stages import Stage, fingerprint
from sparkdeploy.node.container import ImageFact
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import Settings, load_settings
from sparkdeploy.terminal.console import console


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
        below=below.tag if below else None,
        inputs=inputs,
    )
    return replace(stage, **more)  # type: ignore[arg-type]


PROGRAMS = ("sh", "head", "sleep")


def rootfs() -> Iterator[ContextFile]:
    """Yield programs of this machine and the libraries they load, in the places they expect."""
    libraries = set()
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program is not None
        yield ContextFile(f"rootfs/bin/{name}", Path(program).resolve(), 0o755)
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True)
        libraries |= {word for word in listed.stdout.split() if word.startswith("/")}
    for library in sorted(libraries):
        yield ContextFile(f"rootfs{library}", Path(library).resolve(), 0o755)


def build(host: DockerHost, stage: Stage, settings: Settings | None = None) -> ImageFact:
    """Build a stage as `up` does, by default with this machine's certificates, proxies, wheels."""
    with console.step(stage.tag) as step:
        try:
            return build_stage(host, stage, settings or load_settings(), step)
        except BuildError as error:
            error.add_note(error.detail or "")
            raise
