"""words.json is made from the commands themselves; this fails when it is stale.

Write it anew: python -m pytest tests/unit/cli/test_words.py --update-golden
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdeploy.cli.completion.words import WORDS_FILE
from tests.unit.cli.words_of_commands import as_text, words_of_commands

if TYPE_CHECKING:
    import pytest


def test_the_words_are_those_of_the_commands(request: pytest.FixtureRequest) -> None:
    text = as_text(words_of_commands())
    if request.config.getoption("--update-golden"):
        WORDS_FILE.write_text(text, encoding="utf-8")
    assert WORDS_FILE.read_text(encoding="utf-8") == text, (
        "words.json is stale: python -m pytest tests/unit/cli/test_words.py --update-golden"
    )
