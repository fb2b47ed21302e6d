"""`connect`: a client's own settings for a deployment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.deploy.names import said
from sparkdeploy.errors import UsageError
from sparkdeploy.export.clients import client_settings
from sparkdeploy.export.companions import served_deployments

if TYPE_CHECKING:
    from sparkdeploy.deploy.served import ServedDeployment
    from sparkdeploy.export.client_names import Client
    from sparkdeploy.export.clients import ClientSettings
    from sparkdeploy.settings import Settings

LOOPBACK = "127.0.0.1"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]")


@dataclass(frozen=True, slots=True)
class ClientConnection:
    client: Client
    served: ServedDeployment
    host: str
    settings: ClientSettings

    def as_dict(self) -> dict[str, Any]:
        key_file = self.served.key_file
        return {
            "deployment": self.served.name,
            "client": self.client.value,
            "base_url": f"http://{self.host}:{self.served.port}/v1",
            "model": self.served.model,
            "key_file": str(key_file) if key_file is not None else None,
            "context_tokens": self.served.context_tokens,
            "settings": self.settings.text,
            "place": self.settings.place,
        }


def connect_client(
    client: Client, name: str | None, host: str, settings: Settings
) -> ClientConnection:
    """Return what a client has to be told; without a name of the only deployment.

    Raises UsageError for a host that is none, and for another host than this machine where the
    deployment listens on this machine alone.
    """
    if not _HOST.fullmatch(host):
        raise UsageError(f"{host!r} is no host name or address")
    (served,) = served_deployments([said(name, ("connect", client.value))], "connect", settings)
    if host != LOOPBACK and served.key_file is None:
        raise UsageError(
            f"{served.name} listens on this machine alone",
            hint=f"from elsewhere: ssh -N -L {served.port}:{LOOPBACK}:{served.port} {host}, and "
            "the settings without --host; or deploy it with --public",
        )
    return ClientConnection(client, served, host, client_settings(client, served, host))
