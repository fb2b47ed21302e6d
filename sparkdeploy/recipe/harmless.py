"""The lists of what a recipe from elsewhere may set without consent: harmless.yaml, read once."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from sparkdeploy import yaml_text

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = Path(__file__).parent / "harmless.yaml"
MAX_VALUE_LENGTH = 512
"""Nothing harmless is longer, and a pattern's time is bounded by it."""


def _compiles(text: str) -> str:
    try:
        re.compile(text, re.ASCII)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from error
    return text


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Pattern(_Row):
    """A pattern with a name: what a value has to match as a whole, and that in words."""

    match: Annotated[str, AfterValidator(_compiles)]
    words: Annotated[str, Field(min_length=3)]


class Allowed(_Row):
    """What is allowed of one name: values of a pattern, a mapping's keys, or neither: a switch."""

    value: str | None = None
    """A pattern, or the name of one."""
    keys: str | None = None
    """The table that judges the keys, where the value is a mapping."""
    many: bool = False
    """Whether a flag takes several values."""
    why: Annotated[str, Field(min_length=3)]


class Lists(_Row):
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
        """Yield every row of every table with its name."""
        for table in (self.env, self.flags, self.fields, *self.keys.values()):
            yield from table.items()

    def pattern(self, row: Allowed) -> str:
        """Return the regular expression of a row's values; one that nothing matches for none."""
        if row.value is None:
            return r"(?!)"
        named = self.patterns.get(row.value)
        return row.value if named is None else named.match

    def words(self, row: Allowed) -> str:
        """Return a row's harmless values in words, or the pattern itself where it has no name."""
        named = self.patterns.get(row.value or "")
        return named.words if named is not None else f"{row.value}"

    def matches(self, row: Allowed, value: Any) -> bool:  # noqa: ANN401 - YAML content
        """Say whether one value, that is no mapping or list, is harmless."""
        text = value if isinstance(value, str) else json.dumps(value, default=repr)
        return (
            len(text) <= MAX_VALUE_LENGTH
            and re.fullmatch(self.pattern(row), text, re.ASCII) is not None
        )


@functools.cache
def lists() -> Lists:
    """Return what harmless.yaml says; it is a part of the program, like its code."""
    return Lists.model_validate(yaml_text.load(yaml_text.read_text(FILE), str(FILE)))
