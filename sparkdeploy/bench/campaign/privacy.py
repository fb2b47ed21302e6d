"""What must not be in a file that is posted, and taking it out of every text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.secret_shapes import REMOVED, names_a_secret, text_without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LEAST_NAME = 2
"""A shorter name of a machine or a user stands in too many words that are none."""
EVERYBODYS = frozenset({"root", "localhost", "ubuntu", "here"})
OUR_WORDS = frozenset(
    {"prompt", "kind", "counting", "machine", "finish_reason", "ending", "step", "taken_at"}
)
"""Fields whose values are the program's own, whatever somebody's machine is called."""
_HOST_OF_URL = re.compile(r"(\b\w+://)(?:[^/\s@'\"]*@)?(?!127\.0\.0\.1\b|localhost\b)[^/\s'\",)]+")
_LOGIN = re.compile(r"(?<![\w./+-])[\w.+-]+@(?!sha256:)[\w-]+(?:\.[\w-]+)*")
"""No ORG/NAME@REVISION, and no image by its digest."""
_ADDRESS = re.compile(r"(?<![\w.])(?!127\.0\.0\.1\b|0\.0\.0\.0\b)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_ADDRESS_6 = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{0,4}(?![\w:])")
_HOMES = re.compile(r"(?:/home/|/Users/|/root(?=/|\b)|~/)[^\s'\",:)\]}]*")
_REGISTRY = re.compile(r"(?<![\w./-])[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*:\d+(?=/)")
"""A registry of one's own in an image's name: HOST:PORT/NAME."""


@dataclass(frozen=True, slots=True)
class Private:
    """What is known to be nobody else's business, by value."""

    secrets: tuple[str, ...] = ()
    """Keys, and what the environment holds: eight characters or more."""
    names: tuple[str, ...] = ()
    """Of machines and users."""
    folders: tuple[str, ...] = ()
    """The home folder and others of this machine; a path below one is taken out whole."""

    def without(self, value: Any, field: str = "") -> Any:  # noqa: ANN401 - any JSON
        """Return a JSON value without any of it, in keys of mappings neither."""
        if isinstance(value, dict):
            return {self._shapes(name): self.without(item, name) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.without(item, field) for item in value]
        if not isinstance(value, str):
            return value
        text = self._shapes(value)
        return text if field in OUR_WORDS else self._without_names(text)

    def _shapes(self, text: str) -> str:
        """Take out what is known by its value or its form, which no name of a field has."""
        text = text_without_secrets(text, self.secrets)
        for folder in self.folders:
            text = re.sub(rf"{re.escape(folder)}(?![\w.-])[^\s'\",:)\]}}]*", REMOVED, text)
        text = _HOMES.sub(REMOVED, text)
        text = _HOST_OF_URL.sub(rf"\1{REMOVED}", text)
        for shape in (_LOGIN, _REGISTRY, _ADDRESS, _ADDRESS_6):
            text = shape.sub(REMOVED, text)
        return text

    def _without_names(self, text: str) -> str:
        for name in self.names:
            text = re.sub(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", REMOVED, text)
        return text


def known_names(candidates: Iterable[str | None]) -> tuple[str, ...]:
    """Return the names that can be taken out, the longest first."""
    kept = {
        name
        for name in candidates
        if name is not None and len(name) >= LEAST_NAME and name not in EVERYBODYS
    }
    return tuple(sorted(kept, key=lambda name: (-len(name), name)))


def secret_values(env: Mapping[str, str], least: int) -> Iterable[str]:
    """Yield the values of variables that are named like a secret or a proxy."""
    for name, value in env.items():
        if len(value) >= least and (names_a_secret(name) or "proxy" in name.lower()):
            yield value
