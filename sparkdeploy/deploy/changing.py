"""One change at a time on this node."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sparkdeploy.console import console
from sparkdeploy.node.lock import node_lock
from sparkdeploy.node.private_folder import keep_private, make_private

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sparkdeploy.settings import Settings

LOCK_WAIT_S = 5.0
SETTLE_WAIT_S = 120.0
"""A start that has ended must be settled: it waits for whoever stops another container."""


def changing(
    settings: Settings, command: str, *, wait_s: float = LOCK_WAIT_S
) -> AbstractContextManager[None]:
    """Hold the node's lock; NodeError names the holder when it stays held for `wait_s`.

    `command` is what is held up to others, without the program's name: `up v2 --name main`.
    """
    # A full disk, or a file in a folder's place, is for whoever writes there to tell.
    with contextlib.suppress(OSError):
        keep_private(settings.state_dir)
        make_private(settings.cache_dir)
    return node_lock(
        settings.lock_dir,
        settings.node_name,
        command=f"sparkdeploy {command}",
        wait_s=wait_s,
        on_wait=console.info,
    )


def crashes_dir(settings: Settings) -> Path:
    """Return where the evidence of failed containers is kept."""
    return settings.state_dir / "crashes"
