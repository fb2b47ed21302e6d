"""`export litellm`, `prometheus`, `grafana`, `open-webui`: what runs beside deployments."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from sparkdeploy import atomic_files
from sparkdeploy.deploy.deployments import refuse_as_worker, require_deployment
from sparkdeploy.deploy.nodes import connect, resolve_names
from sparkdeploy.deploy.serving import served_by
from sparkdeploy.errors import NodeError, UsageError
from sparkdeploy.export.compose_file import WRITTEN_BY
from sparkdeploy.export.neighbours import (
    grafana_export,
    litellm_export,
    open_webui_export,
    prometheus_export,
)
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sparkdeploy.deploy.serving import ServedDeployment
    from sparkdeploy.export.compose_file import Export
    from sparkdeploy.settings import Settings

KEY_BYTES = 32
GATEWAY_KEY_FILE = ".litellm"
"""Beside the deployments' keys, of which none can be called so."""
LONGEST_MARK_BYTES = 4096


def served_deployments(
    names: Sequence[str], command: str, settings: Settings
) -> tuple[ServedDeployment, ...]:
    """Return the deployments of these names; without names all of the user's own.

    Raises NodeError where there is none, or one is headed by another machine.
    """
    with connect(settings) as host:
        found = [require_deployment(host, name) for name in resolve_names(names, command.split())]
    for item in found:
        refuse_as_worker(item)
    return tuple(served_by(item.current, settings) for item in found)


def export_litellm(
    names: Sequence[str], port: int, settings: Settings, *, is_public: bool
) -> Export:
    """Return LiteLLM's files; the key of its clients is made where there is none yet."""
    served = served_deployments(names, "export litellm", settings)
    if port in {item.port for item in served}:
        raise UsageError(f"port {port} is a deployment's", hint="another one: --port N")
    key_file = settings.state_dir / "keys" / GATEWAY_KEY_FILE
    export = litellm_export(
        served,
        port,
        settings.hosts,
        user=(user := _key_reader(served)),
        key_file=key_file,
        is_public=is_public,
    )
    _make_key(key_file)
    _give(key_file, user)
    console.info(f"its clients' key: {key_file}")
    return export


def export_open_webui(
    names: Sequence[str], port: int, settings: Settings, *, is_public: bool
) -> Export:
    served = served_deployments(names, "export open-webui", settings)
    return open_webui_export(served, port, settings.hosts, is_public=is_public)


def export_prometheus(names: Sequence[str], settings: Settings) -> Export:
    served = served_deployments(names, "export prometheus", settings)
    return prometheus_export(served, _key_reader(served), settings.hosts)


def export_grafana(settings: Settings) -> Export:
    return grafana_export(_key_reader(()), settings.hosts)


def write_export(export: Export, folder: Path) -> None:
    """Write the files of an export; UsageError for what is in the way and not an export's."""
    try:
        _refuse_others(export, folder)
        for name in export.folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
            _give(folder / name, export.user)
        folder.mkdir(parents=True, exist_ok=True)
        for file in export.files:
            path = folder / file.path
            atomic_files.write_text(path, file.text, 0o755 if file.is_program else 0o644)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written to: {error.strerror}") from error


def _refuse_others(export: Export, folder: Path) -> None:
    for file in export.files:
        path = folder / file.path
        if path.is_symlink() or (path.exists() and not _is_written_by_us(path)):
            raise UsageError(
                f"{path} is there and not written by sparkdeploy",
                hint="name another folder, or move it away",
            )


def _is_written_by_us(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return WRITTEN_BY.encode() in file.read(LONGEST_MARK_BYTES)


def _make_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return
    with os.fdopen(handle, "w") as file:
        # LiteLLM takes only keys that begin so.
        file.write(f"sk-{secrets.token_urlsafe(KEY_BYTES)}\n")


def _key_reader(served: Sequence[ServedDeployment]) -> str:
    """Return the UID:GID whose the keys are, or else who runs this.

    Raises NodeError where they are somebody else's, and UsageError where they are of several.
    """
    files = [item.key_file for item in served if item.key_file is not None]
    statuses = [path.stat() for path in files if path.exists()]
    owners = {(status.st_uid, status.st_gid) for status in statuses}
    if len(owners) > 1:
        raise UsageError("the keys of these deployments belong to several users", hint="name some")
    uid, gid = owners.pop() if owners else (os.geteuid(), os.getegid())
    if os.geteuid() not in {uid, 0}:
        raise NodeError(f"the keys of these deployments are those of uid {uid}")
    return f"{uid}:{gid}"


def _give(path: Path, user: str) -> None:
    """Hand what root has made to who is to use it."""
    if os.geteuid() == 0:
        os.chown(path, *map(int, user.split(":")))
