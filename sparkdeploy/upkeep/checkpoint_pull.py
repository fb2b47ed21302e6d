"""`checkpoint pull`: a repository by its name at once, a recipe's once the recipe is read."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint.hub import open_hub
from sparkdeploy.checkpoint.hub_lock import HubLock
from sparkdeploy.checkpoint.pull import Pulled, WantedRepository, announce, awaited_downloads, fetch
from sparkdeploy.checkpoint.repo_files import repo_and_revision
from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.sources import Sources
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sparkdeploy.settings import Settings


def pull_repositories(
    name: str,
    settings: Settings,
    assignments: Sequence[str] = (),
    *,
    anew: bool,
    all_files: bool,
) -> tuple[Pulled, ...]:
    """Download and verify `ORG/NAME[@REVISION]`, or a recipe's model and drafter.

    SOURCE/RECIPE is asked for before a repository of that name. `anew` asks the hub where each
    branch is now; `all_files` takes what vLLM does not read too. Raises CheckpointError: no access,
    no room, no network, or files that stay wrong.
    """
    wanted: Iterable[WantedRepository]
    if _is_of_hub(name, settings):
        wanted = [WantedRepository(*repo_and_revision(name))]
    else:
        from sparkdeploy.deploy.download import (  # noqa: PLC0415 - all of planning
            repositories_of,
        )

        wanted = repositories_of(name, settings, assignments)
    hub, lock = open_hub(settings), HubLock(settings.state_dir)
    if all_files:
        wanted = [replace(item, all_files=True) for item in wanted]
    downloads = [announce(hub, lock, item, anew=anew) for item in wanted]
    with console.steps(*awaited_downloads(downloads)):
        return tuple(fetch(hub, lock, download) for download in downloads)


def _is_of_hub(name: str, settings: Settings) -> bool:
    """ORG/NAME, unless a source has a recipe that is called so."""
    if "/" not in name or name.startswith((".", "/", "~")) or name.endswith(".yaml"):
        return False
    with contextlib.suppress(RecipeError):  # an organisation may be called like a source
        return Sources.below(settings.state_dir).recipe_file(name) is None
    return True
