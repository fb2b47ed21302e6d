"""The lock of another node, held over its connection by a small program that runs there."""

from __future__ import annotations

import contextlib
import inspect
import json
import shlex
from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError
from sparkdeploy.node import shared_files
from sparkdeploy.node.lock import made_anew
from sparkdeploy.node.node import RUN_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sparkdeploy.node.node import Node

LOCKED = "sparkdeploy-locked"
# Behind the text of shared_files.py, where the names come from that are not defined here.
_MAIN = r"""
import fcntl, json, select, sys
from pathlib import Path


def refuse(cause, fix):
    sys.exit(json.dumps({"cause": cause, "fix": fix}))


def lock_within(descriptor, wait_s):
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                refuse("another command starts containers there", "sparkdeploy status")
        # Nobody writes to us: what can be read is the end of the connection.
        if select.select([0], [], [], 0.2)[0]:
            sys.exit(1)


def main(path, wait_s, mark):
    try:
        descriptor = open_lock(path)
    except RefusedError as error:
        refuse(error.cause, error.fix)
    lock_within(descriptor, wait_s)
    if os.fstat(descriptor).st_nlink == 0:
        refuse(f"the lock {path} was removed while it was waited for", "run the command again")
    print(mark, flush=True)
    sys.stdin.buffer.read()


main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
"""


@contextlib.contextmanager
def locked_there(node: Node, path: Path, wait_s: float) -> Iterator[None]:
    """Hold a lock on another node inside the block; it is free again when the connection ends.

    It is the lock that `node_lock` takes there for the same path, and it believes as little of
    what lies there. NodeError when another process holds it for `wait_s`, and when it is spoilt.
    """
    text = inspect.getsource(shared_files) + _MAIN
    argv = ("python3", "-I", "-c", text, str(path), f"{wait_s:g}", LOCKED)
    with node.start(f"exec {shlex.join(argv)}") as program:
        if program.read_until(LOCKED, timeout_s=wait_s + RUN_TIMEOUT_S) is None:
            raise _refusal(node, path, program.errors())
        yield


def _refusal(node: Node, path: Path, said: str) -> NodeError:
    last = (said.strip().splitlines() or ["no answer in time"])[-1]
    try:
        told = json.loads(last)
        cause, fix = str(told["cause"]), str(told["fix"] or made_anew(path.parent))
    except (ValueError, KeyError, TypeError):
        cause = f"the lock {path} cannot be taken: {last}"
        fix = "python3 --version; ls -ld " + shlex.join((str(path.parent), str(path)))
    return NodeError(f"{node.name}: {cause}", hint=f"on {node.name}: {fix}")
