"""`checkpoint pull`: a repository by its name at once, a recipe's once the recipe is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.pull import Pulled, WantedRepository, announce, fetch
from sparkdeploy.checkpoint.repo_files import repo_and_revision

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sparkdeploy.settings import Settings


def pull_repositories(name: str, settings: Settings, *, anew: bool) -> tuple[Pulled, ...]:
    """Download and verify `ORG/NAME[@REVISION]`, or a recipe's model and drafter.

    `anew` asks the hub where each branch is now. Raises CheckpointError: no access, no room, no
    network, or files that stay wrong.
    """
    wanted: Iterable[WantedRepository]
    if "/" in name and not name.startswith((".", "/", "~")) and not name.endswith(".yaml"):
        wanted = [WantedRepository(*repo_and_revision(name))]
    else:
        from sparkdeploy.commands.checkpoint_fetch import (  # noqa: PLC0415 - all of planning
            repositories_of,
        )

        wanted = repositories_of(name, settings)
    hub, lock = open_hub(settings), HubLock(settings.state_dir)
    downloads = [announce(hub, lock, item, anew=anew) for item in wanted]
    return tuple(fetch(hub, lock, download) for download in downloads)
