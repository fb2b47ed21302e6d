"""Other processes, of any user of the machine, that take the lock.

Run as a program it loads Python and the lock once, and forks itself for each line of JSON that it
reads: [action, uid, *paths]. It answers with a line: [pid, what the process has to say].
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.node.lock import node_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NODE = "spark-1"


class Neighbours:
    """Has other processes do what they are asked for."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def plant_link(self, uid: int, folder: Path, target: Path) -> None:
        """Make the folder, and a link to the target where the lock would be."""
        assert self._ask("plant", uid, folder, target)[1] == "planted"

    def hold_lock(self, uid: int, folder: Path) -> int:
        """Hold the lock until `kill`; return the pid."""
        pid, said = self._ask("hold", uid, folder)
        assert said == "held"
        return pid

    def kill(self, pid: int) -> None:
        """Return when a holder has ended, and its lock with it."""
        assert self._ask("kill", pid)[1] == "killed"

    def _ask(self, *request: str | int | Path) -> tuple[int, str]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request, default=str) + "\n")
        self._server.stdin.flush()
        pid, said = json.loads(self._server.stdout.readline())
        return pid, said


@contextmanager
def neighbours() -> Iterator[Neighbours]:
    """Have such processes; all are dead afterwards."""
    argv = [sys.executable, __file__]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield Neighbours(server)


def _plant(folder: Path, target: Path) -> None:
    folder.mkdir()
    folder.chmod(0o1777)
    (folder / f"{NODE}.lock").symlink_to(target)
    _say("planted")


def _hold(folder: Path) -> None:
    with node_lock(folder, NODE, command="sparkdeploy up v2"):
        _say("held")
        signal.pause()


ACTIONS: dict[str, Callable[..., None]] = {"plant": _plant, "hold": _hold}


def _say(text: str) -> None:
    print(json.dumps([os.getpid(), text]), flush=True)


def _be(uid: int, action: str, paths: list[str]) -> None:
    """The whole life of a process of that user."""
    try:
        if uid != os.getuid():
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        ACTIONS[action](*map(Path, paths))
    except BaseException:  # noqa: BLE001 - whoever asked waits for an answer
        _say(traceback.format_exc())
    os._exit(0)


def _serve() -> None:
    holders: set[int] = set()
    for line in sys.stdin:
        action, number, *paths = json.loads(line)
        if action == "kill":
            if number in holders:
                holders.remove(number)
                _end(number)
            _say("killed")
        elif (pid := os.fork()) == 0:
            _be(number, action, paths)
        elif action == "hold":
            holders.add(pid)
        else:
            os.waitpid(pid, 0)
    for pid in holders:
        _end(pid)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    _serve()
