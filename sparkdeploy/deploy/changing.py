"""One change at a time on this node, and the end of what an earlier one left half done."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sparkdeploy.console import console
from sparkdeploy.deploy import recovery
from sparkdeploy.deploy.expectation import expectation_on
from sparkdeploy.deploy.serving import answers, check_truth
from sparkdeploy.node.lock import node_lock
from sparkdeploy.node.private_folder import keep_private, make_private
from sparkdeploy.server.phases import read_whole

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from sparkdeploy.deploy.recovery import Recovery
    from sparkdeploy.node.container import ContainerFact
    from sparkdeploy.node.host import DockerHost
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


def recover(host: DockerHost, deployment: str, settings: Settings) -> Recovery:
    """Finish or revert what an interrupted command left; say what was done."""
    found = recovery.recover(
        host,
        deployment,
        crashes_dir=crashes_dir(settings),
        is_answering=answers,
        now=datetime.now(UTC),
        check=lambda fact: _check(host, fact),
    )
    if found.text:
        console.warn(found.text)
    return found


def _check(host: DockerHost, fact: ContainerFact) -> None:
    """Hold what answers against what was planned for it, as the command that died would have."""
    expected = expectation_on(fact)
    if expected is not None:
        check_truth(expected, read_whole(host.logs(fact.container_id, this_run=True)).facts)
