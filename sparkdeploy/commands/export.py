"""`export`: a deployment as a systemd unit or a Compose file."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.commands.request import plan_for, resolve, seen_from_anywhere, up_words
from sparkdeploy.errors import BuildError, CheckpointError
from sparkdeploy.export.compose_file import compose_text
from sparkdeploy.export.systemd_unit import Unit, unit_text
from sparkdeploy.plan.make import unsettled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.commands.request import Request
    from sparkdeploy.settings import Settings

FOLDER_VARIABLES = (
    "DOCKER_HOST",
    "HF_HOME",
    "HF_HUB_CACHE",
    "SPARKDEPLOY_CACHE_DIR",
    "SPARKDEPLOY_CONFIG_DIR",
    "SPARKDEPLOY_DATA_DIR",
    "SPARKDEPLOY_LOCK_DIR",
    "SPARKDEPLOY_RESOURCES",
    "SPARKDEPLOY_STATE_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
)
"""Variables that say where things are. No other enters a unit: proxies and tokens are secrets."""


def export_systemd(request: Request, settings: Settings, env: Mapping[str, str]) -> str:
    """Return the unit that does at boot what `up` with these options does now.

    Raises RecipeError for a recipe that is none.
    """
    resolved = resolve(request, settings)
    # This very program, found without PATH.
    program = (sys.executable, "-m", "sparkdeploy")
    return unit_text(
        Unit(
            deployment=request.deployment.name,
            up=[*program, *up_words(seen_from_anywhere(request, settings)), "--yes"],
            stop=[*program, "stop", request.deployment.name],
            user=_user(),
            folder=str(Path.cwd()),
            env={name: env[name] for name in FOLDER_VARIABLES if env.get(name)},
            startup_timeout_s=resolved.recipe.limits.startup_timeout_s,
        )
    )


def export_compose(request: Request, settings: Settings) -> str:
    """Return the Compose file of the container that `up` would start.

    Raises CheckpointError as long as the model is not here: its owner is the container's user.
    """
    plan = plan_for(request, settings)
    prepare = _prepare(request)
    if plan.head.spec is None:
        raise CheckpointError(
            "the model is not here yet, so the container's user and mounts are unknown",
            hint=prepare,
        )
    if tag := unsettled([step.stage for step in plan.images]):
        raise BuildError(f"nobody has asked yet what the image {tag} is", hint=prepare)
    written = _prepare(seen_from_anywhere(request, settings))
    return compose_text(plan.head.spec.with_fingerprint(), prepare=written)


def _prepare(request: Request) -> str:
    return shlex.join(["sparkdeploy", *up_words(request), "--prepare"])


def _user() -> str:
    """Return who runs this: not what LOGNAME says, which anybody sets to anything."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
