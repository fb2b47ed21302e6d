"""Runs the program in forks of one process that has imported it: no second of imports a command.

A fork is a process of its own, with its own environment, folder, signals and exit code; it can be
killed like any. `python -m tests.engine.forks` is the server: each message on its stdin asks for
one fork and brings the files that it writes to and a socket. On that socket come the fork's pid
and, when it has ended, its exit code; who closes the socket before kills the fork.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]
DEADLINE_S = 120.0
LONGEST_ORDER_BYTES = 1 << 17
RUN_ELSEWHERE = ("sparkdeploy.vllm_plugin", "sparkdeploy.image.inside")
OF_THE_ENVIRONMENT = "huggingface_hub"
"""It reads the environment while it is imported, and a fork has one of its own."""


@dataclass
class Fork:
    """A command under way."""

    pid: int
    reply: socket.socket
    deadline_s: float = DEADLINE_S
    code: int | None = None

    def wait(self) -> int:
        """Return the exit code, negative for a signal; after the deadline the fork is killed."""
        if self.code is None:
            self.reply.settimeout(self.deadline_s)
            with self.reply:
                self.code = int(self.reply.recv(16))
        return self.code


class ForkServer:
    """The process that has imported the program; `enter` is the command that leads to it."""

    def __init__(self, *enter: str) -> None:
        """Start it; it ends with this process."""
        self._orders, inherited = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with inherited:
            self._process = subprocess.Popen(
                [*enter, sys.executable, "-m", "tests.engine.forks"],
                cwd=CHECKOUT,
                stdin=inherited.fileno(),
            )
        atexit.register(self.end)

    def end(self) -> None:
        """End it; commands that it started go on."""
        atexit.unregister(self.end)
        self._orders.close()
        self._process.wait()

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        files: tuple[int, int],
        *,
        clock_offset_s: float = 0.0,
        deadline_s: float = DEADLINE_S,
    ) -> Fork:
        """Start a command that writes to these descriptors; its wall clock may be another one."""
        order = {
            "argv": [*argv],
            "env": {**env},
            "folder": str(Path.cwd()),
            "clock_offset_s": clock_offset_s,
        }
        reply, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with given:
            message = json.dumps(order).encode()
            socket.send_fds(self._orders, [message], [*files, given.fileno()])
        return Fork(int(reply.recv(16)), reply, deadline_s)

    def run(
        self, argv: Sequence[str], env: Mapping[str, str], deadline_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            files = stdout.fileno(), stderr.fileno()
            code = self.start(argv, env, files, deadline_s=deadline_s).wait()
            written = []
            for file in (stdout, stderr):
                file.seek(0)
                written.append(file.read())
        return subprocess.CompletedProcess(argv, code, *written)


@functools.cache
def fork_server(*enter: str) -> ForkServer:
    """Return the server of this test process; one for each machine that `enter` leads to."""
    return ForkServer(*enter)


@dataclass
class Running:
    """A command of a `WarmCli` that is under way."""

    fork: Fork
    output: Path

    def send(self, number: signal.Signals) -> None:
        """Send a signal; one that has just ended does not mind."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.fork.pid, number)

    def hears(self, number: signal.Signals) -> bool:
        """Say whether it has come so far as to handle a signal itself; True when it has ended."""
        try:
            status = Path(f"/proc/{self.fork.pid}/status").read_text()
        except OSError:
            return True
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> (number - 1) & 1)

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        return self.fork.wait()

    def said(self) -> str:
        """Return all that it wrote."""
        return self.output.read_text(errors="replace")


@dataclass
class WarmCli:
    """One user's commands, one at a time, each with an output file of its own.

    Its server starts where the test is then: in the network of an engine of its own, say.
    """

    env: Mapping[str, str]
    folder: Path
    deadline_s: float = DEADLINE_S
    """How long one command may take."""
    _server: ForkServer = field(init=False)
    _count: int = field(default=0, init=False)
    _last: Running | None = field(default=None, init=False)

    def __enter__(self) -> WarmCli:
        """Start its server."""
        self._server = ForkServer()
        return self

    def __exit__(self, *_: object) -> None:
        """End what a test that failed may have left behind, and the server."""
        self._end_the_last()
        self._server.end()

    def start(self, *argv: str, clock_offset_s: float = 0.0) -> Running:
        """Start a command and return at once."""
        self._end_the_last()
        self._count += 1
        output = self.folder / f"command-{self._count}.log"
        with output.open("w") as file:
            fork = self._server.start(
                argv,
                {**os.environ, **self.env},
                (file.fileno(), file.fileno()),
                clock_offset_s=clock_offset_s,
                deadline_s=self.deadline_s,
            )
        self._last = Running(fork, output)
        return self._last

    def _end_the_last(self) -> None:
        if self._last is not None and self._last.fork.code is None:
            self._last.send(signal.SIGKILL)
            self._last.wait()

    def run(self, *argv: str, clock_offset_s: float = 0.0) -> tuple[int, str]:
        """Run a command to its end; return exit code and all that it wrote."""
        running = self.start(*argv, clock_offset_s=clock_offset_s)
        return running.wait(), running.said()


def serve() -> None:
    """Fork for every order on stdin."""
    import_program()
    gc.freeze()
    # Nobody waits for who looks after a fork.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    orders = socket.socket(fileno=os.dup(0))
    while True:
        message, files, *_ = socket.recv_fds(orders, LONGEST_ORDER_BYTES, 3)
        if not message:
            return
        if os.fork() == 0:
            orders.close()
            look_after(json.loads(message), files)
        for file in files:
            os.close(file)


def import_program() -> None:
    """Import every module but those that read the environment while they are imported."""
    package = importlib.import_module("sparkdeploy")
    sys.modules[OF_THE_ENVIRONMENT] = None  # type: ignore[assignment]
    for module in pkgutil.walk_packages(package.__path__, "sparkdeploy."):
        if not module.name.startswith(RUN_ELSEWHERE):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)
    del sys.modules[OF_THE_ENVIRONMENT]


def look_after(order: dict[str, Any], files: list[int]) -> None:
    """Start the fork; tell its pid and its exit code; kill it when nobody listens any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stdout, stderr, told = files
    pid = os.fork()
    if pid == 0:
        os.close(told)
        become(order, stdout, stderr)
    reply = socket.socket(fileno=told)
    reply.send(b"%d" % pid)
    ended = os.pidfd_open(pid)
    readable, *_ = select.select([ended, reply.fileno()], [], [])
    if ended not in readable:
        os.kill(pid, signal.SIGABRT)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        reply.send(b"%d" % code)
    os._exit(0)


def become(order: dict[str, Any], stdout: int, stderr: int) -> None:
    """Be the program that was asked for, to its end."""
    from sparkdeploy.cli.start import main as program

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    shift_clock(order["clock_offset_s"])
    sys.argv = ["sparkdeploy", *order["argv"]]
    code: Any = 70
    try:
        program()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def shift_clock(offset_s: float) -> None:
    """Give the program's own modules a wall clock that has jumped; Docker's stays."""

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Shifted:
            moment = super().now(tz) + datetime.timedelta(seconds=offset_s)
            return cls.fromtimestamp(moment.timestamp(), tz)

    for name, module in list(sys.modules.items()):
        if offset_s and name.startswith("sparkdeploy.") and hasattr(module, "datetime"):
            module.datetime = Shifted  # type: ignore[attr-defined]


if __name__ == "__main__":
    serve()
