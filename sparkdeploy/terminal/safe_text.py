"""Text that a terminal shows and does not obey: control characters become visible escapes."""

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TextIO, cast

# C0 without tab and line end, DEL, C1; marks, overrides and isolates that turn the direction of
# writing; line ends that only some programs know; halves of surrogate pairs, which are how Python
# holds a file name that is no UTF-8 and which no encoding writes.
_CLASS = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
_COMMANDS = re.compile(_CLASS)
# What takes no cell, so that a word reads as another one: soft hyphens, joiners, tags.
_HIDDEN = re.compile(
    r"[\u00ad\u180e\u200b-\u200d\u2060-\u2065\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_RETURNS = re.compile(r"\r+\n?")
_UNFINISHED = re.compile(r"(?:(?<!\r)\r+|\x1b(?:\[[0-?]*[ -/]*)?)\Z")
MAX_HELD = 64
r"""A colour is shorter than this: what is longer was never going to be one."""


def visible(text: str) -> str:
    r"""Return text whose control characters are written out: `\x1b`, `\u202e`, `\udcff`.

    Line ends and tabs stay; `\r\n` becomes a line end. Twice is the same as once.
    """
    return _COMMANDS.sub(_escape, text.replace("\r\n", "\n"))


def visible_line(text: str) -> str:
    """Return visible text for a single line, such as a name: line ends and tabs become blanks.

    What takes no room is written out too. A longer text keeps it, for languages that need it.
    """
    return _HIDDEN.sub(_escape, visible(text).replace("\n", " ").replace("\t", " "))


def visible_json(text: str) -> str:
    r"""Return JSON that means the same and holds no control character: `\u001b` as JSON has it."""
    return _COMMANDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def visible_log(text: str) -> str:
    r"""Return a whole log as a person reads it: no colours, `\r` of a bar ends a line."""
    reading = LogReading()
    return reading.feed(text) + reading.finish()


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


@dataclass(slots=True)
class LogReading:
    """Makes a log visible as it comes, wherever its chunks happen to end."""

    _held: str = field(default="", init=False)

    def feed(self, chunk: str) -> str:
        """Return what can be shown; the beginning of a colour waits for its end."""
        text = self._held + chunk
        unfinished = _UNFINISHED.search(text)
        cut = unfinished.start() if unfinished else len(text)
        if len(text) - cut > MAX_HELD:
            cut = len(text)
        self._held = text[cut:]
        return _shown(text[:cut])

    def finish(self) -> str:
        held, self._held = self._held, ""
        return _shown(held)


def _shown(text: str) -> str:
    return visible(_RETURNS.sub("\n", _COLOURS.sub("", text)))


class VisibleStream:
    """A text stream through which nothing goes raw. It has no `buffer` to go around it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write what the stream's encoding lacks as an escape too; count as asked for."""
        shown = visible(text)
        try:
            self.stream.write(shown)
        except UnicodeEncodeError:
            encoding = self.stream.encoding
            self.stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.stream, name)


def beneath(stream: TextIO) -> TextIO:
    """Return the stream itself, for our own cursor movements."""
    return stream.stream if isinstance(stream, VisibleStream) else stream


@contextlib.contextmanager
def nothing_raw() -> Iterator[None]:
    """Make everything visible that anybody in this process writes meanwhile.

    The console cleans what it prints. This is for what it does not print: errors of the command
    line's parser, warnings and logs of libraries, tracebacks of threads.
    """
    before = sys.stdout, sys.stderr
    ours = cast("tuple[TextIO, TextIO]", tuple(VisibleStream(stream) for stream in before))
    sys.stdout, sys.stderr = ours
    try:
        yield
    finally:
        # The parser puts streams of its own there when the reader of our answer has gone.
        if sys.stdout is ours[0]:
            sys.stdout = before[0]
        if sys.stderr is ours[1]:
            sys.stderr = before[1]
