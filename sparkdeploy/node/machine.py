"""The seam through which a machine's facts are read: its files and its commands, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sparkdeploy.errors import NodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.shell import Completed


class Machine(Protocol):
    """A machine that can be looked at: this one, one behind ssh, or a recording of one."""

    def read_file(self, path: str) -> str:
        """Return a text file; raise NodeError when it cannot be read."""

    def run(self, argv: Sequence[str], *, timeout_s: float) -> Completed:
        """Run a program to its end; raise NodeError when it cannot start or takes too long."""


def read_or_none(machine: Machine, path: str) -> str | None:
    """Return a text file, or None where there is none that this user may read."""
    try:
        return machine.read_file(path)
    except NodeError:
        return None


def output_or_none(machine: Machine, argv: Sequence[str], *, timeout_s: float) -> str | None:
    """Return what a program printed, or None when it is missing, slow, or failed."""
    try:
        done = machine.run(argv, timeout_s=timeout_s)
    except NodeError:
        return None
    return done.stdout if done.exit_code == 0 else None
