"""`status --watch`: the loop that shows once a second what the readers saw."""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from sparkdeploy.deploy.nodes import connect
from sparkdeploy.monitor.draw import screen_of, snapshot_lines
from sparkdeploy.monitor.readers import END_S, EngineReader, NodeReader
from sparkdeploy.monitor.snapshot import DeploymentState, WatchSnapshot, snapshot_json, snapshot_of
from sparkdeploy.settings import Settings
from sparkdeploy.terminal.console import console
from sparkdeploy.terminal.safe_text import beneath
from sparkdeploy.terminal.screen import END_OF_INPUT, FullScreen
from sparkdeploy.terminal.style import draws_on

FRAME_S = 1.0
AFTER_LOOKS_S = 0.3
"""Readers look on the full second; by then most have their answer."""
PLAIN_EVERY_S = 10.0
LEAVING = frozenset({"q", "Q", END_OF_INPUT})


class Monitor:
    """All readers of a watch, in a block, and what they see together."""

    def __init__(self, names: tuple[str, ...], settings: Settings) -> None:
        self._names = names
        self._settings = settings
        self._nodes: dict[str, NodeReader] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Monitor":
        with contextlib.ExitStack() as opening:
            host = opening.enter_context(connect(self._settings))
            self._engine = EngineReader(host, self._names, self._settings)
            self._open = opening.pop_all()
        self._engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        readers = (self._engine, *self._nodes.values())
        for reader in readers:
            reader.end()
        deadline_s = time.monotonic() + END_S
        for reader in readers:
            reader.join(max(deadline_s - time.monotonic(), 0.0))
        self._open.close()

    def snapshot(self) -> WatchSnapshot:
        seen = self._engine.look
        self._keep_nodes()
        for reader in (self._engine, *self._engine.servers.values(), *self._nodes.values()):
            if reader.failure is not None:
                raise reader.failure
        return snapshot_of(
            datetime.now(UTC),
            seen.deployments,
            {name: reader.look for name, reader in self._engine.servers.items()},
            [reader.seen() for reader in self._nodes.values()],
            seen.problem,
        )

    def _keep_nodes(self) -> None:
        """Have a reader for this machine, and for each other one that serves a part from here."""
        facts = [look.found.current for look in self._engine.look.deployments]
        heads = [fact for fact in facts if not fact.rank and fact.nodes]
        # config.yaml may call this machine otherwise by now.
        here = heads[0].nodes[0] if heads else self._settings.node_name
        if not self._nodes:
            self._add(here, None)
        for name in (name for fact in heads for name in fact.nodes[1:]):
            if name not in self._nodes:
                self._add(name, name)

    def _add(self, shown_name: str, name: str | None) -> None:
        self._nodes[shown_name] = NodeReader(shown_name, name, self._settings)
        self._nodes[shown_name].start()


def watch(names: tuple[str, ...], settings: Settings, *, as_json: bool) -> None:
    """Show the named deployments, or all, until somebody leaves. NodeError for an unknown name."""
    with Monitor(names, settings) as monitor, contextlib.suppress(KeyboardInterrupt):
        # Who watches leaves so: nothing is interrupted by it.
        if as_json:
            _tell(monitor, FRAME_S, lambda snapshot: [snapshot_json(snapshot)])
            return
        stream = beneath(sys.stdout)
        if draws_on(stream):
            _draw(monitor, stream)
        else:
            _tell(monitor, PLAIN_EVERY_S, lines_without_repeats())


def lines_without_repeats() -> Callable[[WatchSnapshot], Iterable[str]]:
    """Return what makes lines of snapshots, with one line of a deployment that was removed."""
    told: set[str] = set()

    def lines_of(snapshot: WatchSnapshot) -> Iterable[str]:
        removed = {it.name for it in snapshot.deployments if it.life is DeploymentState.REMOVED}
        shown = tuple(it for it in snapshot.deployments if it.name not in told & removed)
        told.clear()
        told.update(removed)
        return snapshot_lines(replace(snapshot, deployments=shown))

    return lines_of


def _tell(
    monitor: Monitor, every_s: float, lines_of: Callable[[WatchSnapshot], Iterable[str]]
) -> None:
    while not console.has_no_reader:
        time.sleep(_until_next_frame_s())
        for line in lines_of(monitor.snapshot()):
            console.answer(line)
        time.sleep(every_s - FRAME_S)


def _draw(monitor: Monitor, stream: TextIO) -> None:
    with nothing_beside(), FullScreen(stream, sys.stdin) as screen:
        monitor.snapshot()
        while True:
            screen.show(screen_of(monitor.snapshot(), screen.columns, screen.rows))
            if LEAVING & set(screen.wait(_until_next_frame_s())):
                return


@contextlib.contextmanager
def nothing_beside() -> Iterator[None]:
    """Keep a terminal's screen from what is said beside it, such as the programs that `-v` names.

    An error ends the block, and is told after it. What goes into a file goes on.
    """
    if not sys.stderr.isatty():
        yield
        return
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - closed by the block
    with nowhere, contextlib.redirect_stderr(nowhere):
        yield


def _until_next_frame_s() -> float:
    return FRAME_S - (time.monotonic() - AFTER_LOOKS_S) % FRAME_S
