"""A scripted server whose connections come at moments of the script, not all at first."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.bench.streams import Streams
from tests.unit.bench.scripted import (
    DEADLINE_S,
    HEAD,
    Action,
    Refuse,
    ScriptedClock,
    ScriptedServer,
    read_request,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Arrive:
    """It is so late, and the next connection is this stream's."""

    at_s: float
    stream: int


class ArrivingServer(ScriptedServer):
    def __init__(
        self, actions: Sequence[Action | Arrive], clock: ScriptedClock, *, tried_first: int
    ) -> None:
        super().__init__([item for item in actions if not isinstance(item, Arrive)], clock)
        self._script = sorted(actions, key=lambda action: action.at_s)
        self._tried_first = tried_first
        self.began = threading.Event()
        self._refused = {item.stream for item in actions if isinstance(item, Refuse)}

    def _play(self) -> None:
        try:
            for action in self._script:
                if isinstance(action, Arrive):
                    self._take(action)
                elif action.stream in self._done:
                    self._wait_for_leaving(self._connections[action.stream])
                else:
                    looks = self._clock.set(action.at_s)
                    self._do(action)
                    self._clock.wait_for_look_after(looks)
        except BaseException as error:  # noqa: BLE001 - raised again where the test waits
            self.error = error

    def _take(self, action: Arrive) -> None:
        if len(self._connections) >= self._tried_first:
            # What was tried first counts nowhere: moments count from where the client begins.
            assert self.began.wait(DEADLINE_S)
        self._clock.set(action.at_s)
        connection, _address = self._listener.accept()
        connection.settimeout(DEADLINE_S)
        head, text = read_request(connection)
        self.heads[action.stream] = head
        self._connections[action.stream] = connection
        self.bodies[action.stream] = json.loads(text)
        if action.stream not in self._refused:
            looks = self._clock.set(action.at_s)
            connection.sendall(HEAD)
            self._clock.wait_for_look_after(looks)


class ArrivingStreams(Streams):
    """Waits for moments of the script without looking at its clock, which would move it on."""

    def __init__(self, server: ArrivingServer, clock: ScriptedClock) -> None:
        super().__init__(server.url, clock=clock)
        self._script_clock = clock
        self._began = server.began

    async def wait_until(self, moment_s: float) -> None:
        self._began.set()
        await asyncio.sleep(0)
        while self._script_clock.now_s < moment_s:
            await asyncio.sleep(0.001)


@contextlib.contextmanager
def arriving(
    actions: Sequence[Action | Arrive], *, tried_first: int = 1
) -> Iterator[tuple[ArrivingServer, Streams]]:
    """Serve a script; `tried_first` of its streams come before the load begins."""
    clock = ScriptedClock()
    server = ArrivingServer(actions, clock, tried_first=tried_first)
    with server, ArrivingStreams(server, clock) as streams:
        yield server, streams
