"""tables.yaml: what recipes of others name, and what it means here."""

from __future__ import annotations

import datetime
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from sparkdeploy import yaml_text
from sparkdeploy.recipe.fields import Strict

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = Path(__file__).parent / "tables.yaml"
Reason = Annotated[str, Field(min_length=8)]


class KnownImage(Strict):
    """What stands for an image under a name of others: an engine of ours, or a published image."""

    engine: str | None = None
    image: str | None = None
    source: Reason
    date: datetime.date

    @model_validator(mode="after")
    def _is_one(self) -> KnownImage:
        if (self.engine is None) == (self.image is None):
            raise ValueError("exactly one of engine and image")
        return self


class OtherRuntime(Strict):
    """A server that is not vLLM's: what people call it, and how its commands begin."""

    name: str
    commands: list[str]


class Tables(Strict):
    """The file as it stands there."""

    images: dict[str, KnownImage]
    runtimes: dict[str, OtherRuntime]
    our_runtimes: list[str]
    keys: dict[str, Reason]
    flags: dict[str, Reason]
    env: dict[str, Reason]
    parameters: dict[str, str]

    def runtime_of_command(self, command: str) -> Iterator[str]:
        """Yield the server that a command starts, where it is not vLLM's."""
        for runtime in self.runtimes.values():
            if any(words in command for words in runtime.commands):
                yield runtime.name


@functools.cache
def tables() -> Tables:
    """Read the program's own file: no folder of a user can stand in for it."""
    return Tables.model_validate(yaml_text.load_file(FILE))
