"""Locks around changes of a node's containers, and signals that wait until a change is whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.node.lock import lock_path, node_lock
from sparkdeploy.node.lock_there import locked_there
from sparkdeploy.node.private_folder import keep_private, make_private
from sparkdeploy.settings import SHARED_LOCK_DIR
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import Any

    from sparkdeploy.node.node import Node
    from sparkdeploy.settings import Settings

LOCK_WAIT_S = 120.0
"""A change takes seconds, and at most the time in which two containers stop."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Deferral:
    """The signals that are deferred now; blocks may lie within each other."""

    def __init__(self) -> None:
        self.depth = 0
        self.received = False
        self.handlers: dict[int, Callable[..., Any] | int | None] = {}

    def begin(self) -> None:
        self.depth += 1
        if self.depth > 1:
            return
        for number in _SIGNALS:
            # What is ignored, as under nohup, stays ignored.
            if callable(signal.getsignal(number)):
                self.handlers[number] = signal.signal(number, self._note)

    def end(self) -> None:
        """Give the handlers back; raise KeyboardInterrupt when a signal arrived meanwhile."""
        self.depth -= 1
        if self.depth:
            return
        for number, handler in self.handlers.items():
            signal.signal(number, handler)
        self.handlers.clear()
        if self.received:
            self.received = False
            raise KeyboardInterrupt

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True


_DEFERRAL = _Deferral()


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Ctrl-C, SIGTERM and SIGHUP until the block ends, and then raise KeyboardInterrupt.

    Of blocks within each other the outermost one decides. An error that ends the block is the
    context of the KeyboardInterrupt. Outside the main thread, where no signal arrives, it does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _DEFERRAL.begin()
    try:
        yield
    finally:
        _DEFERRAL.end()


def announced_lock(
    folder: Path, name: str, command: str, *, deployment: str = "", wait_s: float | None = None
) -> AbstractContextManager[None]:
    """Lock a name for a command; while it waits, the user reads for whom.

    NodeError names who keeps the lock for longer than a change takes, or than `wait_s`.
    """
    return node_lock(
        folder,
        name,
        command=command,
        deployment=deployment,
        wait_s=LOCK_WAIT_S if wait_s is None else wait_s,
        on_wait=console.info,
    )


def deploy_lock(
    settings: Settings, command: str, deployment: str = ""
) -> AbstractContextManager[None]:
    """Lock this node for a change of its containers; NodeError names who keeps the lock too long.

    Nothing waits for a person, a network or a build inside it. `command` is what others see in the
    message, without the program's name: `up v2 --name main`; `deployment` is what it changes.
    """
    # A full disk, or a file in a folder's place, is for whoever writes there to report.
    with contextlib.suppress(OSError):
        keep_private(settings.state_dir)
        make_private(settings.cache_dir)
    folder, name = settings.lock_dir, settings.node_name
    return announced_lock(folder, name, f"sparkdeploy {command}", deployment=deployment)


@contextlib.contextmanager
def ranks_lock(nodes: Iterable[Node], command: str) -> Iterator[None]:
    """Let no two heads start ranks on the same nodes at the same time.

    All heads lock the nodes in the order of their names, so that of two heads that want the same
    nodes one gets them all. One machine alone needs no lock beside its own.
    """
    by_name = sorted(nodes, key=lambda node: node.name)
    with contextlib.ExitStack() as locks:
        for node in by_name if len(by_name) > 1 else ():
            # Other heads know nothing of this machine's SPARKDEPLOY_LOCK_DIR: all use one folder.
            name = f"{node.name}-parts"
            path = lock_path(Path(SHARED_LOCK_DIR), name)
            if node.is_here:
                lock = announced_lock(path.parent, name, f"sparkdeploy {command}")
            else:
                lock = locked_there(node, path, LOCK_WAIT_S)
            locks.enter_context(lock)
        yield
