"""Changes of a node's containers: one at a time, and none left in the middle by a signal."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.console import console
from sparkdeploy.node.lock import lock_path, node_lock
from sparkdeploy.node.lock_there import locked_there
from sparkdeploy.node.private_folder import keep_private, make_private
from sparkdeploy.settings import SHARED_LOCK_DIR

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType

    from sparkdeploy.node.node import Node
    from sparkdeploy.settings import Settings

LOCK_WAIT_S = 5.0
SETTLE_WAIT_S = 120.0
"""A start that has ended must be settled: it waits for whoever stops another container."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold Ctrl-C, SIGTERM and SIGHUP back until the block is over; then KeyboardInterrupt.

    What is ignored stays ignored. Outside the main thread no signal is heard, and nothing is held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    heard = [number for number in _SIGNALS if callable(signal.getsignal(number))]
    before = {number: signal.signal(number, note) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def changing(
    settings: Settings, command: str, *, wait_s: float = LOCK_WAIT_S
) -> AbstractContextManager[None]:
    """Hold the node's lock; NodeError names the holder when it stays held for `wait_s`.

    `command` is what others see in the message, without the program's name: `up v2 --name main`.
    """
    # A full disk, or a file in a folder's place, is for whoever writes there to tell.
    with contextlib.suppress(OSError):
        keep_private(settings.state_dir)
        make_private(settings.cache_dir)
    return locked_here(settings, settings.node_name, command, wait_s)


@contextlib.contextmanager
def starting_together(nodes: Iterable[Node], settings: Settings, command: str) -> Iterator[None]:
    """Let no two heads start parts on the same nodes at the same time.

    All heads take the nodes' locks in the order of their names: of two that want the same nodes
    one gets them all, and the other finds its parts. One machine alone needs none beside its own.
    """
    by_name = sorted(nodes, key=lambda node: node.name)
    with contextlib.ExitStack() as held:
        for node in by_name if len(by_name) > 1 else ():
            name = f"{node.name}-parts"
            if node.is_here:
                held.enter_context(locked_here(settings, name, command, SETTLE_WAIT_S))
                continue
            # What SPARKDEPLOY_LOCK_DIR is there is unknown.
            path = lock_path(Path(SHARED_LOCK_DIR), name)
            held.enter_context(locked_there(node, path, SETTLE_WAIT_S))
        yield


def locked_here(
    settings: Settings, name: str, command: str, wait_s: float = LOCK_WAIT_S
) -> AbstractContextManager[None]:
    """Hold the lock of that name on this machine, as `changing` holds the node's."""
    return node_lock(
        settings.lock_dir,
        name,
        command=f"sparkdeploy {command}",
        wait_s=wait_s,
        on_wait=console.info,
    )


def crashes_dir(settings: Settings) -> Path:
    return settings.state_dir / "crashes"
