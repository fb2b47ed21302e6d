"""A machine that boots, with a user on it who has the stand-in's recipe and its engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sparkdeploy.node.host import DockerHost
from tests.engine.booted_machine import BootedMachine, booted_machine
from tests.engine.conftest import free_port
from tests.engine.small_python import small_python
from tests.engine.stand_in.engine import StandInEngine, build_image, copy_image, install


@contextlib.contextmanager
def user_of_a_booted_machine(
    host: DockerHost, base: str, root: Path
) -> Iterator[tuple[BootedMachine, StandInEngine]]:
    """`host` builds the engine's image on `base`; what the user has lies below `root`."""
    image = build_image(host, small_python(host, base))
    with booted_machine(root) as machine:
        with DockerHost(machine.address) as own:
            copy_image(host, own, image)
            user = install(own, root, free_port())
        yield machine, user
