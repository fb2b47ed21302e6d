"""The words of the program: commands, options and what they take.

words.json is made from the commands themselves (tests/unit/cli/test_words.py writes it): loading
those takes several times what a user waits for a name to complete.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WORDS_FILE = Path(__file__).parent / "words.json"


class Value(NamedTuple):
    """What a value may be: a name of one of `kinds` (names.py knows them), or of `choices`."""

    kinds: Sequence[str]
    choices: Sequence[str] = ()
    is_repeated: bool = False
    """Of an argument: whether more of it may follow."""
    may_be_missing: bool = False
    """Of an option: whether it may stand without a value."""


class Option(NamedTuple):
    names: Sequence[str]
    help: str
    value: Value | None
    """None for one that takes none."""


class Command(NamedTuple):
    """A command, or a group of them."""

    help: str
    arguments: Sequence[Value]
    options: Sequence[Option]
    default: str = ""
    """Of a group: the command that is meant where none is named."""

    def option(self, name: str) -> Option | None:
        return next((option for option in self.options if name in option.names), None)

    def option_names(self) -> list[str]:
        return [name for option in self.options for name in option.names]


class Words(NamedTuple):
    commands: Mapping[str, Command]
    """By their words, as in `checkpoint pull`; the program itself has none."""
    settings: Mapping[str, Sequence[str]]
    """What `--set PATH=VALUE` may set, by path: the values, where there is a list of them."""

    def below(self, path: str) -> Iterator[tuple[str, Command]]:
        """Yield the commands of a group by their last word; none for what is no group."""
        start = f"{path} " if path else ""
        for words, command in self.commands.items():
            name = words.removeprefix(start)
            if words.startswith(start) and name and " " not in name:
                yield name, command


def load_words() -> Words:
    """Read words.json; it is a part of the program, like its code."""
    content = json.loads(WORDS_FILE.read_text(encoding="utf-8"))
    commands = {
        path: Command(
            item["help"],
            [Value(*value) for value in item["arguments"]],
            [
                Option(names, text, Value(*value) if value is not None else None)
                for names, text, value in item["options"]
            ],
            item["default"],
        )
        for path, item in content["commands"].items()
    }
    return Words(commands, content["settings"])
