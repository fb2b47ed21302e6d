"""Parts of pages that are made by tests: between `<!-- made: NAME -->` and `<!-- end: NAME -->`."""

from __future__ import annotations

import re


def _pattern(name: str) -> re.Pattern[str]:
    here = re.escape(name)
    return re.compile(rf"(?<=<!-- made: {here} -->\n).*?(?=<!-- end: {here} -->)", re.DOTALL)


def block(page: str, name: str) -> str:
    found = _pattern(name).findall(page)
    assert len(found) == 1, f"{len(found)} parts are called {name}"
    return str(found[0])


def with_block(page: str, name: str, text: str) -> str:
    block(page, name)
    return _pattern(name).sub(lambda _: text, page)
