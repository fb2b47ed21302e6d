"""Remove all that sparkdeploy has made on this machine: `install.sh --uninstall --purge` runs it.

`python -P -m sparkdeploy.uninstall` shows what there is and asks; `--yes` asks nothing.
"""

import errno
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sparkdeploy.deploy.deployments import (
    deployments_in,
    look_again,
    nodes_with,
    refuse_as_worker,
)
from sparkdeploy.deploy.lock import deploy_lock
from sparkdeploy.deploy.nodes import ClusterRecord, connect, connect_nodes
from sparkdeploy.deploy.removal import remove_deployment
from sparkdeploy.errors import NodeError, SparkdeployError
from sparkdeploy.node.host import DockerHost
from sparkdeploy.settings import Settings, load_settings
from sparkdeploy.terminal.console import console
from sparkdeploy.upkeep.clean import Leftover

INSTALLED = "venv"
"""Where install.sh puts the program that runs this; its `--uninstall` removes it."""


def purge(
    settings: Settings, host: DockerHost, *, agrees: Callable[[Sequence[Leftover]], bool]
) -> tuple[Leftover, ...]:
    """Remove it once `agrees` has seen it; settings and downloads of models stay.

    Raises NodeError as `find_everything` does, and for a folder that cannot go. When all else is
    gone: NodeError naming nodes that did not answer, of which the notes stay, and SparkdeployError
    naming images of ours that somebody else's were made from.
    """
    found = tuple(find_everything(settings, host))
    if not found or not agrees(found):
        return ()
    with deploy_lock(settings, "uninstall"):
        waiting = _take_clusters_down(found, settings)
        for item in found:
            if item.kind == "container":
                host.remove(item.name)
        staying = host.remove_own_images()
        noted_in = str(settings.state_dir) if waiting else None
        for item in found:
            if item.kind == "folder" and item.name != noted_in:
                _remove_folder(Path(item.name))
    _refuse_to_be_done(waiting, staying, settings)
    return found


def find_everything(settings: Settings, host: DockerHost) -> Iterator[Leftover]:
    """Yield our deployments over several nodes, containers, images and folders.

    Anybody can put our label on a container, so its name counts too; images go by label. A folder
    that the user named may hold other things as well, and stays. Raises NodeError on a machine
    that has a part of what another one heads.
    """
    containers = host.own_containers()
    here = deployments_in(containers)
    for deployment in here.values():
        refuse_as_worker(deployment, there=f"sparkdeploy down {deployment.name}")
    record = ClusterRecord.below(settings.state_dir)
    for name in dict.fromkeys((*here, *record.deployments())):
        if nodes := nodes_with(here.get(name), record.nodes(name)):
            yield Leftover("deployment", name, 0, f"its parts on {', '.join(nodes)}")
    for fact in containers:
        yield Leftover("container", fact.name, 0, f"deployment {fact.deployment}")
    for container_id in host.ended_checks():
        yield Leftover("container", container_id[:12], 0, "it looked into an image")
    for image in host.own_images():
        name = next(iter(image.tags), image.image_id)
        yield Leftover("image", name, image.size_bytes, "made by sparkdeploy")
    roles = {"data": "prepared checkpoints", "cache": "caches", "state": "state and evidence"}
    for role, why in roles.items():
        folder: Path = getattr(settings, f"{role}_dir")
        if settings.is_own_folder(f"{role}_dir") and folder.is_dir():
            yield Leftover("folder", str(folder), 0, why)


def _take_clusters_down(found: Sequence[Leftover], settings: Settings) -> tuple[str, ...]:
    """End what `found` has over several nodes; return those that did not answer."""
    for item in found:
        if item.kind == "deployment":
            with connect_nodes(settings, item.name) as nodes:
                remove_deployment(nodes, item.name, look_again(nodes.here, item.name), settings)
    record = ClusterRecord.below(settings.state_dir)
    noted = (node for name in record.deployments() for node in record.nodes(name))
    return tuple(dict.fromkeys(noted))


def _refuse_to_be_done(waiting: Sequence[str], staying: Sequence[str], settings: Settings) -> None:
    if waiting:
        raise NodeError(
            f"{', '.join(waiting)} may still have parts of deployments; what is noted of them "
            f"stays in {settings.state_dir}",
            hint="when they answer again, this again; one that is gone for good: take it out of "
            "config.yaml before",
        )
    if staying:
        raise SparkdeployError(
            f"these images stay, for something that is not ours was made from them: "
            f"{', '.join(staying)}",
            hint="remove what was made from them, then this again",
        )


def _remove_folder(folder: Path) -> None:
    """Empty it and remove it; a link goes, and what it leads to stays empty, as a mount does."""
    try:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                if path.name != INSTALLED:
                    shutil.rmtree(path)
            else:
                path.unlink()
        if not any(folder.iterdir()):
            _remove_empty(folder)
    except OSError as error:
        message = f"{error.filename} cannot be removed: {error.strerror}"
        raise NodeError(message, hint=f"sudo rm -r {shlex.quote(str(folder))}") from error


def _remove_empty(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
        return
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        # Something is mounted there: not ours to unmount.


def main(arguments: Sequence[str]) -> None:
    """Show what there is, ask unless `--yes` is among the arguments, and remove it."""
    settings = load_settings()

    def agrees(found: Sequence[Leftover]) -> bool:
        for item in found:
            console.info(f"{item.kind}  {item.name}  {item.why}")
        return "--yes" in arguments or console.confirm("Remove all of it?")

    try:
        with connect(settings) as host:
            found = purge(settings, host, agrees=agrees)
    except SparkdeployError as error:
        console.error(error.message, hint=error.hint, detail=error.detail)
        sys.exit(error.exit_code)
    console.info(f"removed {len(found)}" if found else "nothing was removed")


if __name__ == "__main__":
    main(sys.argv[1:])
