"""Units by which the first connection wakes a deployment: systemd listens in the server's place.

sparkdeploy-NAME.socket           listens on the port that clients know, always
sparkdeploy-NAME-proxy.service    takes what comes there to the server, once that answers
sparkdeploy-NAME.service          the deployment, on a port of its own
"""

from __future__ import annotations

from sparkdeploy.export.systemd_unit import unit_name

PROXY = "/usr/lib/systemd/systemd-socket-proxyd"
PORT_DISTANCE = 10_000
MAX_PORT = 65_535


def socket_name(deployment: str) -> str:
    return f"sparkdeploy-{deployment}.socket"


def proxy_name(deployment: str) -> str:
    return f"sparkdeploy-{deployment}-proxy.service"


def server_port(port: int) -> int:
    """Return the port of the server behind the one that clients know."""
    beyond = port + PORT_DISTANCE
    return beyond if beyond <= MAX_PORT else port - PORT_DISTANCE


def socket_text(deployment: str, host: str, port: int) -> str:
    """Return the socket's unit; connections that come before the server answers wait.

    Where it cannot be started they are closed: one that stayed would start it again and again.
    """
    return f"""\
# {socket_name(deployment)}: written by `sparkdeploy export systemd --socket`.
[Unit]
Description=port {port} of sparkdeploy deployment {deployment}

[Socket]
ListenStream={host}:{port}
Service={proxy_name(deployment)}
FlushPending=yes

[Install]
WantedBy=sockets.target
"""


def proxy_text(deployment: str, port: int) -> str:
    """Return the unit that starts with the deployment, once it answers, and ends with it."""
    server = unit_name(deployment)
    return f"""\
# {proxy_name(deployment)}: written by `sparkdeploy export systemd --socket`.
[Unit]
Description=way from the socket to sparkdeploy deployment {deployment}
BindsTo={server}
After={server} {socket_name(deployment)}
Requires={socket_name(deployment)}

[Service]
Type=exec
ExecStart={PROXY} 127.0.0.1:{port}
DynamicUser=yes
PrivateTmp=yes
NoNewPrivileges=yes
"""
