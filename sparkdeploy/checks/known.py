"""What is known of machines like a Spark, from known.yaml."""

import functools
import re
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.node.container import NeighbourFact


@functools.cache
def known() -> dict[str, Any]:
    content: dict[str, Any] = yaml_text.load_file(Path(__file__).with_name("known.yaml"))
    return content


@dataclass(frozen=True, slots=True)
class KnownBad:
    part: str
    """`driver`, `kernel`, or a part with firmware as doctor names it."""
    version: str
    why: str
    fix: str
    source: str
    unless: str | None = None
    """A kernel option that avoids the fault."""

    def describe(self) -> str:
        return f"{self.why} ({self.source})"

    def matches(self, part: str, version: str, options: Container[str]) -> bool:
        rest = version.removeprefix(self.version)
        # 59 does not match 590, nor 7.0.0-101 match 7.0.0-1019.
        is_version = version == self.version or (rest != version and not rest[0].isalnum())
        return self.part == part and is_version and self.unless not in options


def failing(
    part: str,
    version: str,
    options: Container[str] = (),
    rows: tuple[KnownBad, ...] | None = None,
) -> KnownBad | None:
    """Return the row that a version falls under; `options` are the running kernel's."""
    rows = rows if rows is not None else tuple(KnownBad(**row) for row in known()["bad"])
    return next((row for row in rows if row.matches(part, version, options)), None)


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A program, recognised by its container's name or image, or by its process."""

    title: str
    stop: str
    """The command that stops it; {name} is the container's."""
    name: str = r"(?!)"
    image: str = r"(?!)"
    program: str = r"(?!)"

    def is_container(self, neighbour: NeighbourFact) -> bool:
        named, made = re.search(self.name, neighbour.name), re.search(self.image, neighbour.image)
        return named is not None or made is not None


@functools.cache
def model_servers() -> tuple[ModelServer, ...]:
    """Return them in order: the first that matches a container counts."""
    return tuple(ModelServer(**row) for row in known()["servers"])
