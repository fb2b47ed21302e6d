"""What an import puts together: a document of ours, and a note for every line of theirs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkdeploy.recipe.document import Document
from sparkdeploy.recipe.words import shown
from sparkdeploy.secret_shapes import text_without_secrets

if TYPE_CHECKING:
    from sparkdeploy.recipe.document import KeyPath, ValueOrigin


@dataclass(frozen=True, slots=True)
class Note:
    """One thing of theirs, where it stands, and what became of it."""

    origin: ValueOrigin
    theirs: str
    said: str
    """Ours for what was translated; the reason for what was dropped."""

    @property
    def where(self) -> str:
        """The line of their file, or the option that said it."""
        return shown(self.origin.file) if self.origin.line is None else f"line {self.origin.line}"

    def __str__(self) -> str:
        return f"{self.where}: {self.theirs}: {self.said}"


@dataclass(slots=True)
class Draft:
    """A document of ours while it is put together."""

    content: dict[str, Any] = field(default_factory=dict)
    origins: dict[KeyPath, ValueOrigin] = field(default_factory=dict)
    translated: list[Note] = field(default_factory=list)
    dropped: list[Note] = field(default_factory=list)

    def put(self, path: KeyPath, value: Any, origin: ValueOrigin, theirs: str) -> None:  # noqa: ANN401 - YAML content
        """Set a value of ours, unless a secret is in it; what stood at its place gives way."""
        if text_without_secrets(str(value)) != str(value):
            self.drop(origin, theirs, "it looks like a key or a token")
            return
        mapping, last = self._mapping_of(path), str(path[-1])
        mapping[last] = value
        self._mark(path, origin)
        if isinstance(value, dict):
            self.origins.update({(*path, str(key)): origin for key in value})
        self.translated.append(Note(origin, _printed(theirs), ".".join(map(str, path))))

    def append(self, path: KeyPath, items: list[Any], origin: ValueOrigin, theirs: str) -> None:
        """Add to a list of ours."""
        known = self._mapping_of(path).setdefault(str(path[-1]), [])
        self.origins.update({(*path, len(known) + at): origin for at in range(len(items))})
        known += items
        self.origins.setdefault(path, origin)
        self.translated.append(Note(origin, _printed(theirs), ".".join(map(str, path))))

    def drop(self, origin: ValueOrigin, theirs: str, why: str) -> None:
        self.dropped.append(Note(origin, _printed(theirs), _on_one_line(why)))

    def document(self) -> Document:
        return Document(self.content, self.origins)

    def _mapping_of(self, path: KeyPath) -> dict[str, Any]:
        """Return the mapping that a path ends in; what is none on the way gives way."""
        mapping = self.content
        for key in path[:-1]:
            if not isinstance(mapping.get(str(key)), dict):
                mapping[str(key)] = {}
            mapping = mapping[str(key)]
        return mapping

    def _mark(self, path: KeyPath, origin: ValueOrigin) -> None:
        for end in range(1, len(path)):
            self.origins.setdefault(path[:end], origin)
        self.origins[path] = origin


def _printed(theirs: str) -> str:
    """Return words of theirs as a report or a comment of YAML may hold them."""
    return shown(text_without_secrets(theirs))


def _on_one_line(why: str) -> str:
    return why if why.isprintable() else ascii(why)
