"""Who waits for an answer, by the kernel's list of connections.

vLLM counts a request as running once its engine has made a step with it. An engine that hung while
it was idle, or in a request's first step, never does: the connection alone shows that somebody
waits.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = b"01"


def connections(tables: tuple[Path, ...]) -> Iterator[list[bytes]]:
    """Yield the columns of every TCP socket; none where the kernel does not tell."""
    for table in tables:
        with suppress(OSError):  # a machine without IPv6
            yield from (line.split() for line in table.read_bytes().splitlines()[1:])


def connected(port: int, tables: tuple[Path, ...] = TABLES) -> frozenset[bytes]:
    """The other ends of all connections to this port."""
    ours = b":%04X" % port
    rows = connections(tables)
    return frozenset(row[2] for row in rows if row[3] == ESTABLISHED and row[1].endswith(ours))


@dataclass(slots=True)
class Waiters:
    """How long each connection has been open while the server moved nothing."""

    look: Callable[[], frozenset[bytes]]
    _waited_s: dict[bytes, float] = field(default_factory=dict)
    _acquitted: frozenset[bytes] = frozenset()

    def see(self, passed_s: float, *, has_moved: bool) -> float:
        """Take in one look, so long after the last one; the longest wait in seconds."""
        there = self.look()
        self._acquitted &= there
        before = {} if has_moved else self._waited_s
        self._waited_s = {
            peer: before[peer] + passed_s if peer in before else 0.0
            for peer in there - self._acquitted
        }
        return max(self._waited_s.values(), default=0.0)

    def acquit(self) -> None:
        """Those that are there now are asked about once: a client may hold a connection open."""
        self._acquitted |= frozenset(self._waited_s)
        self._waited_s.clear()
