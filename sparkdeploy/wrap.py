"""Text in cells of a terminal: how wide it is, and where a line that is too long goes on.

What is between blanks stays whole, and so does what is to be copied: a command between backticks
or in the ink of one. Nothing is ever cut; what alone is wider than a row sticks out of it.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.ink import Ink, Piece, line_of
from sparkdeploy.terminal import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sparkdeploy.ink import Line

HANG = 2
"""How much further right than its beginning a line goes on."""
PROGRAMS = frozenset(
    (
        *(
            "apt",
            "apt-get",
            "cat",
            "chmod",
            "chown",
            "curl",
            "df",
            "docker",
            "du",
            "echo",
            "ethtool",
        ),
        *(
            "export",
            "git",
            "hf",
            "ip",
            "kill",
            "ls",
            "mkdir",
            "mv",
            "netplan",
            "nmcli",
            "nvidia-ctk",
        ),
        *("nvidia-smi", "ping", "rdma", "rm", "scp", "sparkdeploy", "ssh", "ssh-copy-id", "sudo"),
        *("ssh-keygen", "sysctl", "systemctl", "usermod", "uv"),
    )
)
"""What begins like one of these is typed as it stands."""
_WIDE = {"W", "F"}
_NO_WIDTH = {"Mn", "Me", "Cf"}
_UNITS = "B|kB|[MGT]B|[MKG]iB|bytes|tok/s|tokens|requests|ms|s|W|MHz|°C|%"
_TOKENS = re.compile(rf" +|(?:`[^`]*`|[^ ]|(?<=\d) (?=(?:{_UNITS})(?!\w)))+")
"""Blanks, or what stays whole: a figure with its unit, too."""
_LABELLED = re.compile(r"( *)(fix|try): (.*)", re.DOTALL)
_SETTING = re.compile(r"[A-Z][A-Z0-9_]*=\S+ ")


def cells(text: str) -> int:
    """Return how many cells a terminal gives a text without control characters."""
    if text.isascii():
        return len(text)
    return sum(map(_cells_of, text))


def clipped(text: str, width: int) -> str:
    """Return a text of at most `width` cells; `…` stands for what is left out."""
    if cells(text) <= width:
        return text
    ends = itertools.accumulate(map(_cells_of, text))
    return text[: sum(end < width for end in ends)] + "…"


def _cells_of(character: str) -> int:
    if unicodedata.east_asian_width(character) in _WIDE:
        return 2
    return 0 if unicodedata.category(character) in _NO_WIDTH else 1


def line_cells(line: Line) -> int:
    return sum(cells(piece.text) for piece in line)


def clean(line: Line) -> Line:
    """Return the line as it is shown: its control characters written out."""
    return tuple(Piece(visible_line(piece.text), piece.ink) for piece in line)


def is_command(text: str) -> bool:
    """Say whether a text is typed as it stands; a sentence may hold commands between backticks."""
    first = text.split(" ", 1)[0]
    return (first in PROGRAMS or _SETTING.match(text) is not None) and "`" not in text


def with_commands(text: str) -> Line:
    """Return a text whose command stays whole: all of it, or what comes behind its last colon."""
    if is_command(text):
        return (Piece(text, Ink.COMMAND),)
    told, colon, last = text.rpartition(": ")
    if colon and is_command(last):
        return line_of(told + colon, Piece(last, Ink.COMMAND))
    return line_of(text)


def read_line(text: str) -> Line:
    """Return a line that was written as bare text; behind `fix:` and `try:` is what to type."""
    if found := _LABELLED.fullmatch(text):
        indent, label, rest = found.groups()
        return (Piece(f"{indent}{label}: "), *with_commands(rest))
    return line_of(text)


def wrapped(line: Line, width: int, hang: int | None = None) -> Iterator[Line]:
    """Yield the rows of a line that is at most `width` cells wide in each.

    It goes on `hang` cells from the left. Without that it goes on beneath the text that stands
    apart from its name, as in `name    text`, or a little further right than it begins.
    """
    if line_cells(line) <= width:
        yield line
        return
    words = list(_words(line))
    hang = min(_hang_of(words, width) if hang is None else hang, width // 2)
    row: list[_Word] = []
    used = 0
    for word in words:
        if row and used + word.gap + word.cells > width:
            yield _joined(row)
            row, used = [], 0
            # A command that is hardly wider than a row fits it from further left.
            gap = min(hang, max(width - word.cells, 0))
            word = _Word(gap, word.pieces)  # noqa: PLW2901 - the same word in its new place
        row.append(word)
        used += word.gap + word.cells
    yield _joined(row)


def _hang_of(words: Sequence[_Word], width: int) -> int:
    column = 0
    for place, word in enumerate(words):
        column += word.gap
        if column > width // 3:
            break
        if place and word.gap > 1:
            return column
        column += word.cells
    return (words[0].gap if words else 0) + HANG


def longest_word(line: Line) -> int:
    """Return the cells of the widest thing in a line that stays whole."""
    return max((word.cells for word in _words(line)), default=0)


@dataclass(frozen=True, slots=True)
class _Word:
    gap: int
    """The blanks before it."""
    pieces: Line

    @property
    def cells(self) -> int:
        return line_cells(self.pieces)


def _words(line: Line) -> Iterator[_Word]:
    gap = 0
    held: list[Piece] = []
    for piece in line:
        for text in _tokens(piece):
            if not text.startswith(" "):
                held.append(Piece(text, piece.ink))
                continue
            if held:
                yield _Word(gap, tuple(held))
                gap, held = 0, []
            gap += len(text)
    if held:
        yield _Word(gap, tuple(held))


def _tokens(piece: Piece) -> Iterable[str]:
    return (piece.text,) if piece.ink is Ink.COMMAND else _TOKENS.findall(piece.text)


def _joined(words: Iterable[_Word]) -> Line:
    """Return words as one line; blanks between two of the same ink are in that ink."""
    pieces: list[Piece] = []
    for word in words:
        first, *others = word.pieces
        blanks = " " * word.gap
        if pieces and pieces[-1].ink is first.ink:
            pieces[-1] = Piece(pieces[-1].text + blanks + first.text, first.ink)
        else:
            pieces += [Piece(blanks), first] if blanks else [first]
        pieces += others
    return tuple(pieces)
