"""What NCCL writes of itself among vLLM's lines, when NCCL_DEBUG asks it to.

Its lines begin with host, process, thread and GPU: `spark-1:2:2 [0] NCCL INFO Using network IB`.
The tests hold this against logs of NCCL 2.28.9 and 2.30.4.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkdeploy.server.log_lines import said, without_codes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LINE = re.compile(
    r"^(?:\[[\d :-]+\] )?[\w.-]+:\d+:\d+ \[-?\d+\] (?:[\w./]+:\d+ )?NCCL ([A-Z]+) ?(.*)"
)
_NETWORK = re.compile(r"Using network (\w+)")
_DEVICES = re.compile(r"NET/(IB|Socket) : Using (.*)")
_NAME = re.compile(r"\[\d+\]([^:\s]+):")


@dataclass(frozen=True, slots=True)
class Transport:
    """How NCCL reaches other nodes, as far as it has told."""

    network: str | None = None
    """`IB` or `Socket`, once it has chosen."""
    adapters: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()

    def describe(self) -> str | None:
        """Return `NET/IB over rocep1s0f1, roceP2p1s0f1`; None before it has chosen."""
        if self.network is None:
            return None
        names = self.adapters if self.network == "IB" else self.interfaces
        return over(self.network, names)


def over(network: str, names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"NET/{network}{' over ' if listed else ''}{listed}"


def read_transport(text: str, known: Transport) -> Transport:
    """Return what is known after one more line.

    Under Ray the head's log has the lines of all nodes: one that uses sockets is told, and adapters
    add up.
    """
    line = _LINE.match(said(text))
    if line is None:
        return known
    if chosen := _NETWORK.match(line[2]):
        return known if known.network == "Socket" else replace(known, network=chosen[1])
    if offered := _DEVICES.match(line[2]):
        names = _NAME.findall(offered[2])
        if offered[1] == "IB":
            return replace(known, adapters=tuple(dict.fromkeys((*known.adapters, *names))))
        return replace(known, interfaces=tuple(dict.fromkeys((*known.interfaces, *names))))
    return known


def is_chatter(text: str) -> bool:
    """Say whether a line is one of NCCL's that warn of nothing; a start has hundreds."""
    line = _LINE.match(said(without_codes(text)))
    return line is not None and line[1] != "WARN"


def without_chatter(pieces: Iterable[str]) -> Iterator[str]:
    """Yield a log's text without those lines, wherever the pieces happen to end."""
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        yield from (f"{line}\n" for line in lines if not is_chatter(line))
        if "\r" in rest.rstrip("\r"):
            # A bar that is still being drawn: NCCL draws none.
            yield rest
            rest = ""
    if not is_chatter(rest):
        yield rest
