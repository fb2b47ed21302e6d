"""Texts over which a pattern may take long: usual ones, and those made from the pattern itself."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

MAX_WAYS = 8
CANDIDATES = "a1A_-. :/'\"=([{<,;@\\\t\r\n\x1b~!%"
UNITS = (
    *("a", "a-", ".", "-", "1", "1.", " ", "\t", "\r", "\n", "'", '"', "[", "]", "{", "(", "<"),
    *("\\", "/", ":", "://", "@", "a.", "a@", "a:", "a ", "_a", "=", "--", "\x1b[", "\x1b", "a='"),
)


def texts(pattern: re.Pattern[Any], size: int) -> Iterator[str]:
    """Yield texts of about `size` characters, with an end that fits nothing."""
    for unit in dict.fromkeys((*UNITS, *_units(pattern))):
        whole = unit * (size // len(unit))
        yield whole
        yield whole + "\0"
    for start in _starts(pattern):
        for filling in dict.fromkeys((*_units(pattern)[-12:], "a", " ", "-", "\r")):
            yield start + filling * ((size - len(start)) // len(filling)) + "\0"


def _units(pattern: re.Pattern[Any]) -> tuple[str, ...]:
    """Return beginnings of what fits, to be repeated, and what each part alone fits."""
    parts = (_sample(item) for way in _ways(pattern) for item in way)
    found = dict.fromkeys((*_starts(pattern), *parts))
    return tuple(unit for unit in found if unit)[:36]


def _starts(pattern: re.Pattern[Any]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for way in _ways(pattern):
        samples = [_sample(item) for item in way]
        found |= dict.fromkeys("".join(samples[: end + 1]) for end in range(len(samples)))
    return tuple(start for start in found if start)[:18]


@functools.lru_cache(maxsize=512)
def _ways(pattern: re.Pattern[Any]) -> tuple[tuple[Any, ...], ...]:
    """Return the parts of a pattern in a row, once for each of its alternatives."""
    text = pattern.pattern
    decoded = text.decode("latin-1") if isinstance(text, bytes) else text
    parsed = parser.parse(decoded, pattern.flags & ~re.UNICODE & ~re.LOCALE)
    return tuple(tuple(way) for way in _expanded(_flat(parsed)))


def _expanded(items: Iterable[Any]) -> list[list[Any]]:
    ways: list[list[Any]] = [[]]
    for kind, value in items:
        if str(kind) == "BRANCH":
            inner = [way for alternative in value[1] for way in _expanded(_flat(alternative))]
            ways = [before + after for before in ways for after in inner][:MAX_WAYS]
        else:
            ways = [[*way, (kind, value)] for way in ways]
    return ways


def _flat(items: Any) -> Iterator[Any]:
    """Yield the parts of a sequence, those in groups and repetitions of many parts too."""
    for kind, value in items:
        name = str(kind)
        if name == "SUBPATTERN":
            yield from _flat(value[3])
        elif name == "ATOMIC_GROUP":
            yield from _flat(value)
        elif name.endswith("_REPEAT") and len(value[2]) > 1:
            yield from _flat(value[2])
        else:
            yield kind, value


def _sample(item: tuple[Any, Any]) -> str:
    kind, value = str(item[0]), item[1]
    if kind == "LITERAL":
        return chr(value)
    if kind in {"ANY", "NOT_LITERAL", "IN"}:
        return next((it for it in CANDIDATES if _fits(item, it)), "")
    if kind.endswith("_REPEAT"):
        once = "".join(map(_sample, _flat(value[2])))
        return once * max(int(value[0]), 1)
    if kind == "BRANCH":
        return "".join(map(_sample, _flat(value[1][0])))
    return ""


def _fits(item: Any, character: str) -> bool:
    kind, value = str(item[0]), item[1]
    if kind == "ANY":
        return character != "\n"
    if kind == "NOT_LITERAL":
        return bool(ord(character) != value)
    is_negated, found = False, False
    for part, detail in value:
        is_negated |= str(part) == "NEGATE"
        found |= _has(str(part), detail, character)
    return found != is_negated


def _has(part: str, detail: Any, character: str) -> bool:
    if part == "LITERAL":
        return bool(ord(character) == detail)
    if part == "RANGE":
        return bool(detail[0] <= ord(character) <= detail[1])
    if part == "CATEGORY":
        letter = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[str(detail).split("_")[-1]]
        return (re.match(letter, character) is not None) != ("_NOT_" in str(detail))
    return False
