"""The commands: where each is, so that it is loaded when it is named, and what it is for."""

from pathlib import Path
from typing import NamedTuple


class CommandEntry(NamedTuple):
    """Where a command is, and what `--help` says of it without loading it."""

    module: str
    """Below sparkdeploy.cli."""
    name: str
    """A function, or `group` for a group of commands."""
    summary: str
    """The first sentence of its help, word for word."""


# A command, its module, its function and its summary a row. The five that a first day takes stand
# on top, also of `--help`, which has 62 columns for a summary.
_ROWS = Path(__file__).with_name("commands.txt").read_text(encoding="utf-8").splitlines()
COMMANDS = {
    name: CommandEntry(module, function, summary)
    for name, module, function, summary in (row.split(maxsplit=3) for row in _ROWS)
}
STAY_HERE = frozenset({"list", "new", "setup", "config", "recipe", "export", "cluster"})
"""Commands about this machine, also where Docker's is another one."""
