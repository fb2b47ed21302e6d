"""`up --stay`: what systemd runs, so that it knows when a deployment serves and when it ends."""

from __future__ import annotations

import os
import socket
from functools import partial

from sparkdeploy.console import console
from sparkdeploy.deploy.nodes import connect_nodes
from sparkdeploy.deploy.staying import stay
from sparkdeploy.settings import load_settings

NOTIFY = "NOTIFY_SOCKET"


def stay_with(deployment: str) -> None:
    """Tell systemd, where it asks, that it serves; return when it was stopped or removed.

    Raises UnhealthyError when a part of it died; the others are stopped then.
    """
    tell_systemd("READY=1")
    settings = load_settings()
    stay(partial(connect_nodes, settings, deployment), deployment, settings)
    console.info(f"{deployment} was stopped")


def tell_systemd(state: str) -> None:
    """Send one word of sd_notify(3); nothing where nobody asked for it."""
    address = os.environ.get(NOTIFY, "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        # An abstract address begins with a zero byte.
        told.sendto(state.encode(), address.replace("@", "\0", 1))
