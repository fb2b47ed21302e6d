"""`checkpoint rm`: nothing goes away beneath a deployment that reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.commands.checkpoint_store import remove
from sparkdeploy.commands.drafting import connect
from sparkdeploy.console import console
from sparkdeploy.deploy.changing import changing
from sparkdeploy.deploy.deployments import list_deployments
from sparkdeploy.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sparkdeploy.commands.checkpoint_store import Stored
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.settings import Settings


def refuse_if_mounted(item: Stored, settings: Settings) -> None:
    """Raise NodeError naming the deployments that run from this folder, and how to stop them.

    A stopped one that needs it, also one that is kept for `rollback`, is told and stops nothing.
    Where no Docker Engine answers, nobody can say.
    """
    try:
        host = connect(settings)
    except NodeError as error:
        console.warn(f"whether a deployment uses {item.name} is not known: {error.message}")
        return
    with host:
        _refuse(item, host)


def remove_unmounted(item: Stored, settings: Settings) -> None:
    """Delete it; nothing is started meanwhile. Raises what `refuse_if_mounted` does."""
    with changing(settings, f"checkpoint rm {item.name}"):
        refuse_if_mounted(item, settings)
        remove(item, settings)


def _refuse(item: Stored, host: DockerHost) -> None:
    running: list[str] = []
    for deployment in list_deployments(host):
        users = list(_users(deployment.containers, item.path, host))
        if any(fact.is_running for fact in users):
            running.append(deployment.name)
        elif users:
            console.warn(f"{deployment.name} is stopped and will not start without {item.name}")
    if running:
        names = ", ".join(running)
        raise NodeError(
            f"{item.name} is in use by deployment {names}",
            hint=" && ".join(f"sparkdeploy down {name}" for name in running),
        )


def _users(
    containers: Iterable[ContainerFact], folder: Path, host: DockerHost
) -> Iterator[ContainerFact]:
    wanted = folder.resolve()
    for fact in containers:
        sources = host.mounted_from(fact.container_id)
        if any(Path(source).resolve().is_relative_to(wanted) for source in sources):
            yield fact
