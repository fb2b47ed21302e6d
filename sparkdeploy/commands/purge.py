"""`clean --everything`: remove all that sparkdeploy has made on this machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.commands.clean import Leftover
from sparkdeploy.deploy.changing import changing
from sparkdeploy.errors import NodeError, SparkdeployError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sparkdeploy.node.host import DockerHost
    from sparkdeploy.settings import Settings

INSTALLED = "venv"
"""Where install.sh puts the program that runs this; its `--uninstall` removes it."""


def purge(
    settings: Settings, host: DockerHost, *, agrees: Callable[[Sequence[Leftover]], bool]
) -> tuple[Leftover, ...]:
    """Remove it once `agrees` has seen it; settings and downloads of models stay.

    Raises NodeError for a folder that cannot go, and SparkdeployError naming images of ours that
    somebody else's were made from, when all else is gone.
    """
    with changing(settings, "clean --everything"):
        found = tuple(find_everything(settings, host))
        if not found or not agrees(found):
            return ()
        for item in found:
            if item.kind == "container":
                host.remove(item.name)
        staying = host.remove_own_images()
        for item in found:
            if item.kind == "folder":
                _remove_folder(Path(item.name))
    if staying:
        raise SparkdeployError(
            f"these images stay, for something that is not ours was made from them: "
            f"{', '.join(staying)}",
            hint="remove what was made from them, then this again",
        )
    return found


def find_everything(settings: Settings, host: DockerHost) -> Iterator[Leftover]:
    """Yield our containers, images and folders.

    Anybody can put our label on a container, so its name counts too; images go by label. A folder
    that the user named may hold other things as well, and stays.
    """
    for fact in host.own_containers():
        yield Leftover("container", fact.name, 0, f"deployment {fact.deployment}")
    for container_id in host.ended_checks():
        yield Leftover("container", container_id[:12], 0, "it looked into an image")
    for image in host.own_images():
        name = next(iter(image.tags), image.image_id)
        yield Leftover("image", name, image.size_bytes, "made by sparkdeploy")
    roles = {"data": "prepared checkpoints", "cache": "caches", "state": "state and evidence"}
    for role, why in roles.items():
        folder: Path = getattr(settings, f"{role}_dir")
        if settings.sources[f"{role}_dir"] == "default" and folder.is_dir():
            yield Leftover("folder", str(folder), 0, why)


def _remove_folder(folder: Path) -> None:
    try:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                if path.name != INSTALLED:
                    shutil.rmtree(path)
            else:
                path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
    except OSError as error:
        told = f"{error.filename} cannot be removed: {error.strerror}"
        raise NodeError(told, hint=f"sudo rm -r {folder}") from error
