"""What else runs on the machine of a rehearsal, and may not be disturbed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError
from sparkdeploy.node.cluster import this_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from sparkdeploy.settings import Settings


def refuse_to_replace(name: str, settings: Settings, consent: Callable[[str], bool]) -> None:
    """Somebody may use what an earlier rehearsal left running."""
    with this_node(settings) as nodes:
        running = [it for it in nodes.here.docker.own_containers() if it.deployment == name]
    if any(it.is_running for it in running) and not consent(
        f"{name} is running; end it and rehearse anew?"
    ):
        raise NodeError(
            f"{name} is running and stays",
            hint=f"--name NAME rehearses beside it, --yes replaces it, `sparkdeploy down {name}` "
            "ends it",
        )


def ports_of_others(name: str, settings: Settings) -> frozenset[int | None]:
    """A deployment has its port from its start on, long before it listens."""
    with this_node(settings) as nodes:
        containers = nodes.here.docker.own_containers()
    return frozenset(it.port for it in containers if it.deployment != name)
