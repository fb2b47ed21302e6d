"""Knocks on a local engine's socket before the SDK does."""

from __future__ import annotations

import socket

from sparkdeploy.errors import NodeError

CALL_TIMEOUT_S = 60
START_HINT = "start it: `sudo systemctl start docker`, or `sudo dockerd &` without systemd"


def require_listener(address: str) -> None:
    """Knock on a local socket first: the SDK leaks its own when nobody answers.

    Raises NodeError that tells a dead engine from a missing right, and for an engine behind ssh:
    its machine's memory, disks and models are not this one's.
    """
    if address.startswith("ssh://"):
        raise NodeError(
            f"docker at {address} is another machine's, and this command is about its own",
            hint=f"pass `--on {address}` where a command has it, or run it on that machine",
        )
    if not address.startswith("unix://"):
        return
    path = address.removeprefix("unix://")
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(CALL_TIMEOUT_S)
            probe.connect(path)
    except PermissionError as error:
        raise NodeError(
            f"docker at {address} may not be used by this user",
            hint="sudo usermod -aG docker $USER, then log in again",
        ) from error
    except OSError as error:
        raise NodeError(
            f"docker at {address} does not answer: {error.strerror or error}", hint=START_HINT
        ) from error
