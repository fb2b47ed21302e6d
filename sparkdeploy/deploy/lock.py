"""Locks around changes of a node's containers, and signals that wait until a change is whole."""

from __future__ import annotations

import contextlib
import signal
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy.atomic_files import keep_private, make_private
from sparkdeploy.errors import NodeError
from sparkdeploy.node.lock import Holder, lock_holder, lock_path, locked_there, node_lock
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.settings import SHARED_LOCK_DIR, Settings
from sparkdeploy.terminal.console import console

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from sparkdeploy.deploy.launch import Launch
    from sparkdeploy.node.node import Node
    from sparkdeploy.plan.steps import Plan

LOCK_WAIT_S = 120.0
"""A change takes seconds, and at most the time in which two containers stop."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDING = ".use"


_DEFERRING: ContextVar[bool] = ContextVar("deferring", default=False)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Defer signals until the outermost block ends, and then raise KeyboardInterrupt.

    An error that ends the block is its context. Outside the main thread it does nothing.
    """
    if _DEFERRING.get() or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers: dict[int, Any] = {}
    deferring = _DEFERRING.set(True)
    try:
        for number in _SIGNALS:
            # What is ignored, as under nohup, stays ignored.
            if callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, lambda it, _frame: received.append(it))
        yield
    finally:
        _DEFERRING.reset(deferring)
        # One that comes while they are given back leaves none of the others behind.
        with contextlib.ExitStack() as given_back:
            for known, handler in handlers.items():
                given_back.callback(signal.signal, known, handler)
        if received:
            raise KeyboardInterrupt


def announced_lock(
    folder: Path, name: str, command: str, *, deployment: str = "", wait_s: float | None = None
) -> AbstractContextManager[None]:
    """Lock a name for a command; NodeError names who keeps it longer than `wait_s`."""
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
    """Lock this node for a change of its containers; NodeError names who keeps it too long."""
    # Nothing waits for a person, a network or a build inside it.
    # A full disk, or a file in a folder's place, is for whoever writes there to report.
    with contextlib.suppress(OSError):
        keep_private(settings.state_dir)
        make_private(settings.cache_dir)
    folder, name = settings.lock_dir, settings.node_name
    return announced_lock(folder, name, f"sparkdeploy {command}", deployment=deployment)


@contextlib.contextmanager
def ranks_lock(nodes: Iterable[Node], command: str) -> Iterator[None]:
    """Let no two heads start ranks on the same nodes at the same time."""
    # In the order of the nodes' names, so that of two heads one gets them all.
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


@contextlib.contextmanager
def naming(plan: Plan, launch: Launch) -> Iterator[None]:
    """Name the plan's images and models inside the block, in which they are prepared."""
    settings = launch.settings
    note = node_lock(
        settings.lock_dir,
        f"{settings.node_name}-{launch.deployment}{ENDING}",
        command=f"sparkdeploy {launch.command}",
        deployment=launch.deployment,
        uses=tuple(_named_by(plan)),
    )
    with contextlib.ExitStack() as entered:
        # Of two `up`s of one deployment the second names nearly the same, and need not.
        with contextlib.suppress(NodeError):
            entered.enter_context(note)
        yield


def _named_by(plan: Plan) -> Iterator[str]:
    yield from (step.stage.tag for step in plan.images)
    models = (plan.observed.model, *plan.observed.companions)
    for model in models:
        if isinstance(model, ModelFact):
            yield str(model.root)
            if model.overlay is not None:
                yield str(model.overlay.path)
        elif model is not None:
            yield model.repo


def users_of(names: Iterable[str], settings: Settings) -> dict[str, Holder]:
    """Return those of the image tags, repositories and folders that a running `up` has named."""
    wanted = set(names)
    found: dict[str, Holder] = {}
    folder = settings.lock_dir
    for path in sorted(folder.glob(f"{settings.node_name}-*{ENDING}.lock")):
        holder = lock_holder(folder, path.name.removesuffix(".lock"))
        if holder is not None:
            found.update(dict.fromkeys(wanted.intersection(holder.uses), holder))
    return found


def refuse_used(names: Iterable[str], settings: Settings) -> None:
    for name, holder in users_of(names, settings).items():
        raise NodeError(
            f"{name} is used by {holder.describe()}", hint="wait until it has ended, then again"
        )
