"""A container's output as lines, each with the process that wrote it."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sparkdeploy.plan.launch import over

MAX_LINE_BYTES = 8192
"""What a line has beyond this is dropped: a progress bar without line ends must not fill memory."""

_SEPARATOR = re.compile(rb"[\r\n]")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
_ORIGIN = re.compile(
    r"^\((?P<origin>[A-Za-z][\w.-]{0,64}?)(?P<rank>_[A-Z]{1,16}\d\w{0,32})?(?: pid=\d+)?"
    r"(?P<node>, ip=[\w.:]{1,64})?\) ?"
)
# Ray puts a prefix of its own before or after vLLM's.
_ORIGINS = re.compile(r"^(?:\([A-Za-z][^()]*\) ?)+")
_MOST_ORIGINS = 2
_HEAD = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d"
    r"(?:[.,]\d{1,9})? \[[^\]]+\] ?"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    text: str
    origin: str = ""
    """The process that wrote it as vLLM names it (`EngineCore`, `APIServer`), or nothing."""
    level: str = ""
    """INFO, WARNING, ERROR...; nothing for a line that no logger wrote."""


@dataclass(slots=True)
class LineSplitter:
    """Cuts bytes into lines, wherever chunks end; holds one unfinished line, drops empty ones."""

    _open: bytearray = field(default_factory=bytearray, init=False)

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the lines that this chunk finishes, without terminal codes."""
        *finished, rest = _SEPARATOR.split(chunk)
        for piece in finished:
            self._append(piece)
            text = self.unfinished()
            self._open.clear()
            if text:
                yield text
        self._append(rest)

    def unfinished(self) -> str:
        """Return the line that has begun and not ended, without terminal codes."""
        return without_codes(self._open.decode(errors="replace")).rstrip()

    def _append(self, piece: bytes) -> None:
        self._open += piece[: MAX_LINE_BYTES - len(self._open)]


def without_codes(text: str) -> str:
    return _ANSI.sub("", text)


GUARD_MARK = "sparkdeploy-guard: "


def guard_report(text: str) -> dict[str, Any]:
    """Return what the guard says on a line; empty for a line that is not the guard's.

    Its lines begin with its mark; anywhere else that is a quotation. vLLM shares its output and
    could write the mark as well: lines explain, they decide nothing.
    """
    if not text.startswith(GUARD_MARK):
        return {}
    try:
        report = json.loads(text.removeprefix(GUARD_MARK))
    except (ValueError, RecursionError):
        return {}
    return report if isinstance(report, dict) else {}


def message_of(text: str) -> str:
    return _HEAD.sub("", _ORIGINS.sub("", text))


def lines_of(log: bytes | str) -> list[str]:
    raw = log.encode(errors="replace") if isinstance(log, str) else log
    return list(LineSplitter().feed(raw + b"\n"))


def read_line(text: str) -> LogLine:
    origin = ""
    for _ in range(_MOST_ORIGINS):
        if match := _ORIGIN.match(text):
            origin += "".join(part or "" for part in match.groups())
            text = text[match.end() :]
    level = ""
    if match := _HEAD.match(text):
        level = match["level"]
        text = text[match.end() :]
    return LogLine(text, origin, level)


_LINE = re.compile(
    r"^(?:\[[\d :-]+\] )?(?P<process>[\w.-]+:\d+):\d+ \[-?\d+\] (?:\S+:\d+ )?"
    r"NCCL (?P<level>[A-Z]+) ?(?P<message>.*)"
)
_VERBS = "libibverbs: "
"""How the lines of the library begin that NCCL reaches adapters with."""
_NETWORK = re.compile(r"Using network (.+)")
_ADAPTERS = re.compile(r"NET/IB : Using (.*)")
_INTERFACES = re.compile(r"NET/Socket : Using (.*)")
# `[0]rocep1s0f1:1/RoCE`; `[0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE}` where ports are merged.
_ADAPTER = re.compile(r"\[\d{1,6}\] ?([^:\s{}=,]{1,64}):\d{1,6}/")
_INTERFACE = re.compile(r"\[\d{1,6}\]([^:\s]{1,64}):")
_ENDS_OF_ADAPTERS = ("[RO]", "OOB ")
"""The text after the last adapter. Ray may split a line in two, each read as a line."""
_NETWORKS = ("IB", "Socket")


@dataclass(frozen=True, slots=True)
class Transport:
    network: str | None = None
    offers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The adapters of each process (host:pid): under Ray the head's log has those of all nodes."""
    interfaces: tuple[str, ...] = ()

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return those of all processes, or of the one that has fewer than the others."""
        fewest = min(self.offers.values(), key=len, default=())
        is_even = all(len(names) == len(fewest) for names in self.offers.values())
        each = self.offers.values() if is_even else [fewest]
        return tuple(dict.fromkeys(name for names in each for name in names))

    def describe(self) -> str | None:
        """Return `NET/IB over rocep1s0f1, roceP2p1s0f1`; None before it has chosen."""
        if self.network is None:
            return None
        names = self.adapters if self.network == "IB" else self.interfaces
        return over(self.network, names)


def read_transport(text: str, known: Transport) -> Transport:
    """Return what is known after one more line; under Ray one node that uses sockets counts."""
    line = _LINE.match(message_of(text))
    if line is None:
        return known
    if chosen := _NETWORK.match(line["message"]):
        network = _network(chosen[1].strip())
        keeps = network is None or known.network == "Socket"
        return known if keeps else replace(known, network=network)
    offered = _ADAPTERS.match(line["message"])
    if offered and any(end in offered[1] for end in _ENDS_OF_ADAPTERS):
        names = tuple(dict.fromkeys(_ADAPTER.findall(offered[1])))
        return replace(known, offers={**known.offers, line["process"]: names}) if names else known
    if offered := _INTERFACES.match(line["message"]):
        names = (*known.interfaces, *_INTERFACE.findall(offered[1]))
        return replace(known, interfaces=tuple(dict.fromkeys(names)))
    return known


def _network(name: str) -> str | None:
    """Return NCCL's choice; None for the first letters of one, which a cut line may end with."""
    if name.startswith("IB"):
        # Plugins that drive the same adapters call themselves IBext, IBext_v8 and so on.
        return "IB"
    is_cut = any(known.startswith(name) and known != name for known in _NETWORKS)
    return None if is_cut else name


def is_from_nccl(text: str) -> bool:
    """Say whether a line is NCCL's own, or the verbs library's, and no quotation of one."""
    message = message_of(without_codes(text))
    return message.startswith(_VERBS) or _LINE.match(message) is not None


def is_nccl_info(text: str) -> bool:
    """Say whether a line is one of NCCL's that warn of nothing; a start has hundreds."""
    # A progress bar without a line end may precede it.
    line = _LINE.match(message_of(without_codes(text.rstrip("\r").rpartition("\r")[2])))
    return line is not None and line["level"] != "WARN"


def without_nccl_info(pieces: Iterable[str]) -> Iterator[str]:
    """Yield a log's text without NCCL's INFO lines, wherever the pieces end."""
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + piece).split("\n")
        yield from (f"{line}\n" for line in lines if not is_nccl_info(line))
        if "\r" in rest.rstrip("\r"):
            # An unfinished progress bar is not NCCL's.
            yield rest
            rest = ""
    if not is_nccl_info(rest):
        yield rest
