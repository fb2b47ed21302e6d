"""Runs the program in forks of one process that has imported it: no second of imports a command.

A fork is a process of its own, with its own signals and exit code; it can be killed like any.
`python -m tests.engine.stand_in.warm_cli` is the parent: a JSON line on stdin, `{argv,
clock_offset_s, output, deadline_s}`, starts one; the answer is its pid and, when it has ended, its
exit code.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECKOUT = Path(__file__).parents[3]
DEADLINE_S = 120.0


@dataclass
class Running:
    """A command under way."""

    parent: subprocess.Popen[str]
    pid: int
    output: Path
    code: int | None = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; one that has just ended does not mind."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def hears(self, number: signal.Signals) -> bool:
        """Say whether it has come so far as to handle a signal itself; True when it has ended."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return True
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> (number - 1) & 1)

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""
        if self.code is None:
            assert self.parent.stdout is not None
            self.code = int(self.parent.stdout.readline())
        return self.code

    def said(self) -> str:
        """Return all that it wrote."""
        return self.output.read_text(errors="replace")


@dataclass
class WarmCli:
    """The parent; one command at a time."""

    env: Mapping[str, str]
    folder: Path
    deadline_s: float = DEADLINE_S
    """How long one command may take."""
    _parent: subprocess.Popen[str] = field(init=False)
    _count: int = field(default=0, init=False)
    _last: Running | None = field(default=None, init=False)

    def __enter__(self) -> WarmCli:
        """Start it."""
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.stand_in.warm_cli"],
            cwd=CHECKOUT,
            env={**os.environ, **self.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._end_the_last()
        self._parent.communicate()

    def start(self, *argv: str, clock_offset_s: float = 0.0) -> Running:
        """Start a command and return at once; its wall clock may be another one."""
        self._end_the_last()
        self._count += 1
        output = self.folder / f"command-{self._count}.log"
        output.touch()
        order = {
            "argv": argv,
            "clock_offset_s": clock_offset_s,
            "output": str(output),
            "deadline_s": self.deadline_s,
        }
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(order) + "\n")
        self._parent.stdin.flush()
        self._last = Running(self._parent, int(self._parent.stdout.readline()), output)
        return self._last

    def _end_the_last(self) -> None:
        """A test that failed may have left its command behind."""
        if self._last is not None and self._last.code is None:
            self._last.send(signal.SIGKILL)
            self._last.wait()

    def run(self, *argv: str, clock_offset_s: float = 0.0) -> tuple[int, str]:
        """Run a command to its end; return exit code and all that it wrote."""
        running = self.start(*argv, clock_offset_s=clock_offset_s)
        return running.wait(), running.said()


def main() -> None:
    """Fork for every order on stdin."""
    _import_everything()
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(order)
        print(pid, flush=True)
        print(_ended(pid, order["deadline_s"]), flush=True)


def _import_everything() -> None:
    import sparkdeploy.cli.deployments
    import sparkdeploy.cli.main
    import sparkdeploy.cli.outcome
    import sparkdeploy.deploy.lifecycle
    import sparkdeploy.deploy.up
    import sparkdeploy.monitor.status
    import sparkdeploy.node.host  # noqa: F401 - all for the forks


def _become(order: dict[str, Any]) -> None:
    from sparkdeploy.cli.start import main as program

    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _shift_clock(order["clock_offset_s"])
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


def _shift_clock(offset_s: float) -> None:
    """Give the program's own modules a wall clock that has jumped; Docker's stays."""

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Shifted:
            moment = super().now(tz) + datetime.timedelta(seconds=offset_s)
            return cls.fromtimestamp(moment.timestamp(), tz)

    for name, module in list(sys.modules.items()):
        if offset_s and name.startswith("sparkdeploy.") and hasattr(module, "datetime"):
            module.datetime = Shifted  # type: ignore[attr-defined]


def _ended(pid: int, within_s: float) -> int:
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGABRT)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    main()
