"""`export`: a deployment as a systemd unit or a Compose file."""

import os
import pwd
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sparkdeploy import labels
from sparkdeploy.deploy.request import (
    PORT,
    Request,
    from_anywhere,
    plan_for,
    resolve,
    sets_variables,
    up_words,
    with_expected_paths,
)
from sparkdeploy.errors import CheckpointError, UsageError
from sparkdeploy.export.compose_file import Export, ExportedFile, compose_text
from sparkdeploy.export.systemd_unit import (
    BETWEEN_STARTS_S,
    Unit,
    gateway_unit_name,
    proxy_name,
    proxy_text,
    server_port,
    socket_name,
    socket_text,
    unit_name,
    unit_text,
)
from sparkdeploy.gateway.stack import Stack
from sparkdeploy.plan.launch import bound_host
from sparkdeploy.plan.report import UNKNOWN_FINGERPRINT, fingerprinted
from sparkdeploy.recipe.load import Resolved
from sparkdeploy.recipe.paths import with_whole_path
from sparkdeploy.server.phases import expected_start
from sparkdeploy.settings import Settings
from sparkdeploy.shell import AS_MODULE
from sparkdeploy.terminal.console import console
from sparkdeploy.units import format_seconds

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


def export_systemd(
    request: Request, settings: Settings, env: Mapping[str, str], *, is_woken: bool = False
) -> str:
    """Return the unit that does at boot what `up` with these options does now."""
    whole = tuple(with_whole_path(item, Path()) for item in request.assignments)
    request = replace(request, assignments=whole)
    resolved = resolve(request, settings)
    anywhere = replace(request, recipe=from_anywhere(request.recipe, settings))
    refuse_variables(request, settings)
    # This very program, found without PATH.
    program = (sys.executable, *AS_MODULE)
    return unit_text(
        Unit(
            name=unit_name(request.deployment.name),
            subject=f"deployment {request.deployment.name}",
            up=[*program, *up_words(anywhere), "--yes", "--stay"],
            stop=[*program, "stop", request.deployment.name],
            user=_user(),
            env=dict(folder_variables(env)),
            startup_timeout_s=resolved.recipe.limits.startup_timeout_s,
            needed=_needed_folders(resolved, settings, anywhere.recipe),
            is_woken=is_woken,
        )
    )


def export_gateway_unit(stack: Stack, consents: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the unit of a stack's gateway; what it starts lives on when the gateway ends."""
    return unit_text(
        Unit(
            name=gateway_unit_name(stack.name),
            subject=f"gateway of {stack.name}",
            up=[sys.executable, *AS_MODULE, "gateway", *consents, "--", str(stack.path)],
            stop=(),
            user=_user(),
            env=dict(folder_variables(env)),
            startup_timeout_s=BETWEEN_STARTS_S,
            needed=(str(stack.path),),
            notifies=False,
        )
    )


def _needed_folders(resolved: Resolved, settings: Settings, recipe: str) -> tuple[str, ...]:
    """Return what the unit reads and writes, links with what they lead to: disks may come late."""
    weights = (resolved.recipe.model, *resolved.recipe.companions)
    named = (recipe, *(it.path for it in weights), resolved.recipe.checkpoint.fp8_dense.source)
    paths = [
        settings.hub_cache,
        *(settings.config_dir, settings.data_dir, settings.cache_dir, settings.state_dir),
        Path(sys.executable),
        Path(sys.prefix),
        *(Path(it).expanduser() for it in named if it and it[0] in "/~"),
    ]
    whole = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100 - a link stays one
    return tuple(dict.fromkeys(str(it) for path in whole for it in (path, path.resolve())))


def folder_variables(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that say where things are, each path whole."""
    for name in FOLDER_VARIABLES:
        if value := env.get(name):
            is_path = name != "DOCKER_HOST" and not value.startswith("~")
            yield name, os.path.abspath(value) if is_path else value  # noqa: PTH100 - as typed


def refuse_variables(request: Request, settings: Settings) -> None:
    """A unit is read by everybody, and so are the arguments of what it runs for months."""
    typed = [item.partition("=")[0].strip() for item in request.assignments if sets_variables(item)]
    if typed:
        raise UsageError(
            f"--set {' and '.join(typed)} cannot be exported: every user can read it there, "
            "and in `ps` as long as it serves",
            hint=f"put serve.env into a recipe file of yours that extends {request.recipe}, in "
            f"{settings.config_dir / 'recipes'} and of mode 0600, and export that",
        )


def export_socket(request: Request, settings: Settings, env: Mapping[str, str]) -> Export:
    """Return the units by which the first connection to the recipe's port starts the deployment."""
    recipe = resolve(request, settings).recipe
    name, port = request.deployment.name, recipe.serve.port
    behind = server_port(port)
    others = [item for item in request.assignments if not item.startswith(f"{PORT}=")]
    moved = replace(request, assignments=(*others, f"{PORT}={behind}"))
    host = bound_host(is_public=request.deployment.is_public)
    files = (
        ExportedFile(socket_name(name), socket_text(name, host, port)),
        ExportedFile(proxy_name(name), proxy_text(name, behind)),
        ExportedFile(unit_name(name), export_systemd(moved, settings, env, is_woken=True)),
    )
    install = f"sudo cp {' '.join(file.path for file in files)} /etc/systemd/system/"
    enable = f"sudo systemctl daemon-reload && sudo systemctl enable --now {socket_name(name)}"
    idle_s = recipe.limits.idle_stop_s
    stops = (
        f"it stops after {format_seconds(idle_s)} without a request"
        if idle_s is not None
        else "it never stops by itself: --set limits.idle_stop_s=1800 lets it, after half an hour"
    )
    # The image of its next start is not known here: the newest start of the recipe tells.
    waits = expected_start(settings.state_dir, f"any {recipe.name}")
    notes = (f"how long a request waits that finds it stopped: {waits}", stops)
    return Export(files, next_step=f"{install} && {enable}", notes=notes)


def export_compose(request: Request, settings: Settings) -> str:
    """Return the Compose file of `up`'s container; `<...>` stands for what is not known before.

    Raises CheckpointError where a container cannot be described at all.
    """
    plan = with_expected_paths(plan_for(request, settings), settings)
    if plan.head.spec is None:
        raise CheckpointError("the container cannot be described yet", hint=_prepare(request))
    spec = fingerprinted(plan, plan.head.spec)
    is_whole = spec.labels[labels.FINGERPRINT] != UNKNOWN_FINGERPRINT
    if not is_whole:
        console.warn(f"the file is not complete: export it again after {_prepare(request)}")
    if own := list(plan.resolved.recipe.serve.env):
        # The container's environment is part of its description: Compose takes it from the file.
        console.warn(f"the file has the values of {' and '.join(own)}: keep it at mode 0600")
    anywhere = replace(request, recipe=from_anywhere(request.recipe, settings))
    return compose_text(spec, prepare=_prepare(anywhere), is_whole=is_whole)


def _prepare(request: Request) -> str:
    return shlex.join(["sparkdeploy", *up_words(request), "--prepare"])


def _user() -> str:
    """Return who runs this: not what LOGNAME says, which anybody sets to anything."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
