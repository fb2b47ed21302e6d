"""What a recipe from elsewhere may set without consent: harmless.yaml, and arguments held to it.

vLLM's parser takes more spellings than can be listed: the start of a flag, `-O3`, `-cc.mode`,
`@file`, a bare word as the model. Here a flag counts when it is written out, or in a short form
that means one flag in every release, with its value after it or after `=`. Every other word is a
question for the user.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from sparkdeploy import yaml_text
from sparkdeploy.recipe import flags
from sparkdeploy.recipe.fields import Strict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from sparkdeploy.recipe.document import KeyPath

FILE = Path(__file__).parent / "harmless.yaml"
MAX_VALUE_LENGTH = 512
"""Nothing harmless is longer, and a pattern's time is bounded by it."""
SHOWN_LENGTH = 160
"""An image with its digest is shown whole."""
MAX_KEYS = 8
"""In one another; vLLM's own mappings have four."""
CLEAR_SHORT_FORMS = ("-dcp", "-ep")
"""Others have meant different flags in different releases (`-O`), or are sparkdeploy's to set."""


def _compiles(text: str) -> str:
    try:
        re.compile(text, re.ASCII)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from error
    return text


class Pattern(Strict):
    """A pattern with a name: what a value has to match as a whole, and that in words."""

    match: Annotated[str, AfterValidator(_compiles)]
    words: Annotated[str, Field(min_length=3)]


class Allowed(Strict):
    """What is allowed of one name: values of a pattern, a mapping's keys, or neither: a switch."""

    value: str | None = None
    """A pattern, or the name of one."""
    keys: str | None = None
    """The table that judges the keys, where the value is a mapping."""
    many: bool = False
    """Whether a flag takes several values."""
    why: Annotated[str, Field(min_length=3)]

    @property
    def is_switch(self) -> bool:
        return self.value is None and self.keys is None


class Lists(Strict):
    """harmless.yaml as it stands there; every name a row refers to exists."""

    patterns: dict[str, Pattern]
    env: dict[str, Allowed]
    flags: dict[str, Allowed]
    keys: dict[str, dict[str, Allowed]]
    fields: dict[str, Allowed]
    typed: dict[str, str]

    @model_validator(mode="after")
    def _refers_to_what_exists(self) -> Lists:
        for name, row in self.rows():
            _compiles(self.pattern(row))
            if row.keys is not None and row.keys not in self.keys:
                raise ValueError(f"{name}: there is no table {row.keys}")
        return self

    def rows(self) -> Iterator[tuple[str, Allowed]]:
        for table in (self.env, self.flags, self.fields, *self.keys.values()):
            yield from table.items()

    def pattern(self, row: Allowed) -> str:
        if row.value is None:
            return r"(?!)"  # nothing matches it
        named = self.patterns.get(row.value)
        return row.value if named is None else named.match

    def without_consent(self, row: Allowed) -> str:
        named = self.patterns.get(row.value or "")
        words = named.words if named is not None else row.value
        return f"without consent it is {words} ({row.why})"

    def matches(self, row: Allowed, value: Any) -> bool:  # noqa: ANN401 - YAML content
        """Say whether one value is harmless; mappings and lists are for others."""
        text = value if isinstance(value, str) else json.dumps(value, default=repr)
        return (
            len(text) <= MAX_VALUE_LENGTH
            and re.fullmatch(self.pattern(row), text, re.ASCII) is not None
        )


@functools.cache
def lists() -> Lists:
    """Read the program's own file: no folder of a user can stand in for it."""
    return Lists.model_validate(yaml_text.load_file(FILE))


def shown(text: object) -> str:
    """Return text of a stranger as it may be printed: on one line, short, without control signs."""
    words = str(text)
    if len(words) > SHOWN_LENGTH:
        words = words[:SHOWN_LENGTH] + "..."
    return words if words.isprintable() else ascii(words)


def questions(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield every argument that needs consent by its place, and what it is."""
    index = 0
    while index < len(arguments):
        flag, equals, inline = arguments[index].partition("=")
        values = [inline] if equals else _values(flag, arguments[index + 1 :])
        for question in _questions_of(flag, values, inline=bool(equals)):
            yield index, question
        index += 1 if equals else 1 + len(values)


def _values(flag: str, rest: Sequence[str]) -> list[str]:
    """Return the words that belong to a flag; those of an unknown one are named with it."""
    row = lists().flags.get(_written_out(flag.partition(".")[0]))
    if row is not None and not row.many:
        return list(rest[: 0 if row.is_switch else 1])
    end = next((at for at, word in enumerate(rest) if word.startswith("-")), len(rest))
    return list(rest[:end])


def _questions_of(flag: str, values: list[str], *, inline: bool) -> Iterator[str]:
    name, dot, below = flag.partition(".")
    row = lists().flags.get(_written_out(name))
    said = shown(f"{flag}={values[0]}" if inline else " ".join([flag, *values]))
    if not flag.startswith("-"):
        yield f"the word {said} follows no flag; vLLM may take it for a model"
    elif row is None:
        yield (
            f"{said}: not on the list of harmless flags; a flag can load code, move files or "
            "open a port"
        )
    elif dot:
        yield from (f"{said}: {why}" for why in _below(row, below.split("."), values))
    elif row.is_switch:
        if inline:
            yield f"{said}: {name} takes no value"
    elif not values:
        yield f"{said}: {name} needs a value"
    elif row.keys is not None:
        yield from (f"{shown(flag)}: {why}" for why in _json(row.keys, values[0]))
    else:
        wrong = (value for value in values if not lists().matches(row, value))
        yield from (f"{name} {shown(value)}: {lists().without_consent(row)}" for value in wrong)


def _written_out(name: str) -> str:
    if name in CLEAR_SHORT_FORMS:
        return flags.SHORT_FORMS[name]
    return flags.with_hyphens(name)


def _below(row: Allowed, keys: list[str], values: list[str]) -> Iterator[str]:
    # `--flag.key.key value` is one value of the flag's mapping.
    if row.keys is None or not values:
        yield "it takes no keys" if row.keys is None else "it needs a value"
        return
    if len(keys) > MAX_KEYS:
        yield f"more than {MAX_KEYS} keys"
        return
    nested: Any = values[0]
    for key in reversed(keys):
        nested = {key: nested}
    yield from (why for _, why in mapping_questions(row.keys, nested))


def _json(table: str, text: str) -> Iterator[str]:
    try:
        content = json.loads(text, object_pairs_hook=_each_key_once)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        yield from (why for _, why in mapping_questions(table, content))
    else:
        yield f"{shown(text)} is not a JSON object with each key once"


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that stands twice: which of the two counts is each reader's own choice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice")
    return content


def mapping_questions(table: str, content: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield each key of a mapping that needs consent, by its path within, and what it is."""
    rows = lists().keys[table]
    for key, value in content.items():
        row = rows.get(key)
        if row is None:
            yield (key,), f"the key {shown(key)} is not on the list of harmless ones"
        elif isinstance(value, dict) and row.keys is not None:
            for below, why in mapping_questions(row.keys, value):
                yield (key, *below), why
        elif not _all_match(row, value):
            yield (key,), f"{key}: {shown(value)}: {lists().without_consent(row)}"


def _all_match(row: Allowed, value: Any) -> bool:  # noqa: ANN401 - YAML or JSON content
    items = value if isinstance(value, list) else [value]
    return all(not isinstance(item, dict | list) and lists().matches(row, item) for item in items)
