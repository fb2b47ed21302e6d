"""No pattern of the tool takes long over a line that somebody else writes."""

from __future__ import annotations

import functools
import itertools
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sparkdeploy.chat import answer
from sparkdeploy.checks.known import known, model_servers
from sparkdeploy.cli import main
from sparkdeploy.estimate import model
from sparkdeploy.image import build
from sparkdeploy.recipe import arguments
from sparkdeploy.recipe.releases import families
from sparkdeploy.server import crash, phases
from tests.laws.attacks import texts
from tests.laws.patterns import SCANNING, Pattern, patterns

SEARCH, WHOLE = frozenset({"search"}), frozenset({"fullmatch"})
IN_DATA: dict[str, tuple[Callable[[], Iterable[str]], frozenset[str]]] = {
    "checks/machine.py:_running": (lambda: (it.program for it in model_servers()), SEARCH),
    "checks/machine.py:_stop_of": (
        lambda: (*(it.program for it in model_servers()), *(it["name"] for it in known()["ranks"])),
        SEARCH,
    ),
    "checks/known.py:is_container": (
        lambda: (text for it in model_servers() for text in (it.name, it.image)),
        SEARCH,
    ),
    "cli/main.py:_show_misuse": (lambda: main._MISUSES, frozenset({"sub"})),
    "chat/answer.py:follow": (lambda: (it[0] for it in answer._HINTS), SEARCH),
    "estimate/model.py:rules": (lambda: (it.pattern for it in model.rules().values()), SEARCH),
    "image/build.py:failed": (lambda: (it["pattern"] for it in build.hints()), SEARCH),
    "recipe/arguments.py:_value": (arguments.PATTERNS.values, WHOLE),
    "recipe/releases.py:family_of": (lambda: (it.repositories for it in families()), SEARCH),
    "server/crash.py:_by_signature": (lambda: (it.pattern for it in crash.signatures()), SEARCH),
    "server/crash.py:_by_two_lines": (lambda: (it.beside for it in crash.signatures()), SEARCH),
    "server/phases.py:_read_percent": (phases._BARS.values, SEARCH),
}
"""Patterns that stand in tables and files, by the function that uses them."""
SHORT, LONG = 1_000, 20_000
SUSPECT_S = 0.0002
"""Over the short text; what takes quadratic time is then far from the limit over the long one."""
HOPELESS_S = 0.02
LIMIT_S = 0.2
"""For one long text: linear patterns took 36 ms at most, and the fastest quadratic one 520 ms."""


@functools.cache
def everything() -> tuple[Pattern, ...]:
    named = [
        Pattern(where, re.compile(text), uses)
        for where, (texts_of, uses) in IN_DATA.items()
        for text in texts_of()
        if text
    ]
    return (*patterns()[0], *named)


def slow_text(pattern: Pattern) -> str | None:
    """Return the beginning of a text that takes long; None when none does."""
    for place, short in enumerate(texts(pattern.compiled, SHORT)):
        for use in sorted(pattern.uses):
            took_s = seconds(pattern.compiled, use, short)
            if took_s < SUSPECT_S:
                continue
            long = next(itertools.islice(texts(pattern.compiled, LONG), place, None))
            # Cubic time over the long text would be hours.
            grown_s = took_s * (LONG / SHORT) ** 2
            took_s = grown_s if took_s > HOPELESS_S else seconds(pattern.compiled, use, long)
            if took_s > LIMIT_S:
                return f"{use} of {len(long)} characters {long[:60]!r} took {took_s:.1f} s"
    return None


def seconds(compiled: re.Pattern[Any], use: str, text: Any) -> float:
    if isinstance(compiled.pattern, bytes):
        text = text.encode()
    empty = text[:0]
    call: Callable[[], object] = (
        (lambda: compiled.sub(empty, text))
        if use in SCANNING
        else functools.partial(getattr(compiled, use), text)
    )
    started_s = time.process_time()
    call()
    return time.process_time() - started_s


def test_every_pattern_is_found() -> None:
    assert set(patterns()[1]) == {f"sparkdeploy/{where}" for where in IN_DATA}


@pytest.mark.parametrize("text", [r"[\d,]+\s+%", r"x|<(s|head)\b.*?</\1>", r"(?P<n>\w+?)\w+ m"])
def test_a_pattern_that_is_slow_is_noticed(text: str) -> None:
    assert slow_text(Pattern("here", re.compile(text, re.DOTALL), SEARCH)) is not None


@pytest.mark.parametrize("part", range(16))
def test_a_pattern_takes_linear_time(part: int) -> None:
    slow = {it.where: said for it in everything()[part::16] if (said := slow_text(it)) is not None}
    assert slow == {}
