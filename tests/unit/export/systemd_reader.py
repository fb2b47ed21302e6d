"""A unit file read as systemd.syntax(7), systemd.unit(5) and systemd.service(5) say."""

from __future__ import annotations

import re

WHITESPACE = b" \t\n\r"
SIMPLE = {
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b"\\": b"\\",
    b'"': b'"',
    b"'": b"'",
    b"s": b" ",
}
LONGEST_LINE = 1 << 20


class MisreadError(AssertionError):
    """Systemd would read something else, or nothing."""


def settings_of(unit: bytes) -> list[tuple[str, bytes]]:
    """Every setting in order: lines that end in a backslash go on, comments are none."""
    found: list[tuple[str, bytes]] = []
    going_on = b""
    for line in unit.split(b"\n"):
        if len(line) >= LONGEST_LINE:
            raise MisreadError("a line is too long")
        if line.lstrip(WHITESPACE)[:1] in {b"#", b";"}:
            continue
        if line.endswith(b"\\"):
            going_on += line[:-1] + b" "
            continue
        whole, going_on = (going_on + line).strip(WHITESPACE), b""
        if whole and not whole.startswith(b"["):
            name, equals, value = whole.partition(b"=")
            if not equals:
                raise MisreadError(f"no setting: {whole!r}")
            found.append((name.decode(), value.strip(WHITESPACE)))
    return found


def words_of(value: bytes) -> list[bytes]:
    """The words of a value: quotes go around whole ones, escapes are C's, specifiers expand."""
    found = []
    rest = value.lstrip(WHITESPACE)
    while rest:
        word, rest = _word(rest)
        found.append(_without_doubled(word, b"%"))
        rest = rest.lstrip(WHITESPACE)
    return found


def command_of(value: bytes) -> list[bytes]:
    """The arguments of one ExecStart=: a `;` alone ends a command, a `$` is a variable."""
    rest = value.lstrip(WHITESPACE)
    while rest:
        # Within quotes it is a letter like others.
        if rest[:1] == b";" and (len(rest) == 1 or rest[1:2] in WHITESPACE):
            raise MisreadError("two commands")
        rest = _word(rest)[1].lstrip(WHITESPACE)
    program, *words = words_of(value)
    if program[:1] in b"@-:+!|" or b"$" in program:
        raise MisreadError(f"no plain program: {program!r}")
    return [program, *(_without_doubled(word, b"$") for word in words)]


def plain_of(value: bytes) -> bytes:
    """A value that takes no quotes: only specifiers expand in it."""
    return _without_doubled(value, b"%")


def _word(text: bytes) -> tuple[bytes, bytes]:
    quote = text[:1] if text[:1] in {b'"', b"'"} else b""
    word, place = b"", len(quote)
    while place < len(text):
        letter = text[place : place + 1]
        if letter == b"\\":
            piece, place = _escape(text, place + 1)
            word += piece
        elif quote and letter == quote:
            rest = text[place + 1 :]
            if rest and rest[:1] not in WHITESPACE:
                raise MisreadError(f"a quote within a word: {text!r}")
            return word, rest
        elif not quote and letter in WHITESPACE:
            return word, text[place:]
        else:
            word += letter
            place += 1
    if quote:
        raise MisreadError(f"a quote has no end: {text!r}")
    return word, b""


def _escape(text: bytes, place: int) -> tuple[bytes, int]:
    letter = text[place : place + 1]
    if letter in SIMPLE:
        return SIMPLE[letter], place + 1
    for pattern, base in ((rb"x([0-9a-fA-F]{2})", 16), (rb"([0-3][0-7]{2})", 8)):
        if match := re.compile(pattern).match(text, place):
            code = int(match[1], base)
            if code == 0:
                raise MisreadError("NUL")
            return bytes([code]), match.end()
    if match := re.compile(rb"u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})").match(text, place):
        return chr(int(match[1] or match[2], 16)).encode(), match.end()
    raise MisreadError(f"no escape: {text[place - 1 :][:9]!r}")


def _without_doubled(word: bytes, sign: bytes) -> bytes:
    if sign in word.replace(sign * 2, b""):
        raise MisreadError(f"{sign!r} expands in {word!r}")
    return word.replace(sign * 2, sign)
