"""What became of a recipe of others: a document of ours, and a note for each line of theirs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.errors import RecipeError
from sparkdeploy.folders import schema_line
from sparkdeploy.recipe.consent import CONSENT_OPTIONS
from sparkdeploy.recipe.document import Document, KeyPath, ValueOrigin
from sparkdeploy.recipe.words import shown
from sparkdeploy.secret_shapes import text_without_secrets
from sparkdeploy.yaml_text import in_line

ORDER = ("schema", "name", "title", "engine", "image", "mods", "model", "checkpoint", "serve")
COMMENT_COLUMN = 60
LISTS = ("serve.extra_args", "mods", "serve.lora")


@dataclass(frozen=True, slots=True)
class Note:
    origin: ValueOrigin
    theirs: str
    outcome: str
    """The key of ours for what was translated; the reason for what was dropped."""

    @property
    def where(self) -> str:
        """The line of their file, or the option that set it."""
        return shown(self.origin.file) if self.origin.line is None else f"line {self.origin.line}"

    def __str__(self) -> str:
        return f"{self.where}: {self.theirs}: {self.outcome}"


@dataclass(slots=True)
class Translation:
    """A recipe of others as one of ours, filled in key by key."""

    format: str
    """`eugr v1`, `sparkrun v2`..."""
    file: str
    document: Document = field(default_factory=lambda: Document({}, {}))
    translated: list[Note] = field(default_factory=list)
    dropped: list[Note] = field(default_factory=list)

    @property
    def content(self) -> dict[str, Any]:
        return self.document.content

    def put(self, path: KeyPath, value: Any, origin: ValueOrigin, theirs: str) -> None:  # noqa: ANN401 - YAML content
        """Set a value of ours, unless a secret is in it; what stood at its place gives way."""
        if text_without_secrets(str(value)) != str(value):
            self.drop(origin, theirs, "it looks like a key or a token")
            return
        self._mapping_of(path)[str(path[-1])] = value
        origins = self.document.origins
        for end in range(1, len(path)):
            origins.setdefault(path[:end], origin)
        origins[path] = origin
        if isinstance(value, dict):
            origins.update({(*path, str(key)): origin for key in value})
        self._note(path, origin, theirs)

    def append(self, path: KeyPath, items: list[Any], origin: ValueOrigin, theirs: str) -> None:
        known = self._mapping_of(path).setdefault(str(path[-1]), [])
        origins = self.document.origins
        origins.update({(*path, len(known) + at): origin for at in range(len(items))})
        known += items
        origins.setdefault(path, origin)
        self._note(path, origin, theirs)

    def drop(self, origin: ValueOrigin, theirs: str, why: str) -> None:
        self.dropped.append(
            Note(origin, _printable(theirs), why if why.isprintable() else ascii(why))
        )

    def _note(self, path: KeyPath, origin: ValueOrigin, theirs: str) -> None:
        self.translated.append(Note(origin, _printable(theirs), ".".join(map(str, path))))

    def _mapping_of(self, path: KeyPath) -> dict[str, Any]:
        """Return the mapping that a path ends in; another value on the way gives way."""
        mapping = self.content
        for key in path[:-1]:
            if not isinstance(mapping.get(str(key)), dict):
                mapping[str(key)] = {}
            mapping = mapping[str(key)]
        return mapping

    def short_lines(self) -> Iterator[str]:
        """Yield how much was translated, and what was left out."""
        count = len(self.translated)
        yield (
            f"  imported from {shown(Path(self.file).name)} ({self.format}): "
            f"{count} value{'s' * (count != 1)} translated, {len(self.dropped)} left out"
        )
        yield from (f"      {note}" for note in self.dropped)

    def whole_lines(self, consents: Sequence[str], warnings: Sequence[str]) -> Iterator[str]:
        """Yield every line of theirs: translated, in need of consent, or left out and why."""
        yield f"{shown(self.file)} ({self.format})"
        translated = [f"{it.where}: {it.theirs} -> {it.outcome}" for it in self.translated]
        for title, lines, is_shown in (
            ("translated", translated, True),
            ("needs your consent", consents, bool(consents)),
            ("left out", self.dropped, True),
            ("may not be known to the image's vLLM", warnings, bool(warnings)),
        ):
            if is_shown:
                yield f"  {title} ({len(lines)}):"
                yield from (f"    {line}" for line in lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the same as plain values; a line is None for what was typed."""

        def rows(notes: list[Note], outcome: str) -> list[dict[str, Any]]:
            return [
                {"line": it.origin.line, "theirs": it.theirs, outcome: it.outcome} for it in notes
            ]

        return {
            "file": self.file,
            "format": self.format,
            "translated": rows(self.translated, "ours"),
            "left_out": rows(self.dropped, "why"),
        }


def _printable(theirs: str) -> str:
    """Return words of theirs as a report or a comment of YAML may hold them."""
    return shown(text_without_secrets(theirs))


def recipe_text(translation: Translation) -> str:
    """Return YAML that loads as what was translated, with a comment on what each value came from.

    Raises RecipeError for content that YAML cannot hold, so that nothing of theirs ends up outside
    a text.
    """
    sources = _sources(translation.translated)
    content = {key: it for key, it in translation.content.items() if key not in CONSENT_OPTIONS}
    lines = [schema_line("recipe")]
    lines += [f"# Imported from {shown(Path(translation.file).name)} ({translation.format})."]
    for key in sorted(content, key=lambda key: (*ORDER, key).index(key)):
        lines += _lines(key, content[key], key, sources, "")
    lines += ["# Left out:"] if translation.dropped else []
    lines += [f"#   {note}" for note in translation.dropped]
    text = "\n".join(lines) + "\n"
    try:
        is_same = yaml_text.load(text, "the recipe") == content
    except RecipeError:
        is_same = False
    if not is_same:
        raise RecipeError(
            f"{shown(translation.file)} holds values that a file of ours cannot",
            hint="run it as it is: `sparkdeploy plan` reads it without a file in between",
        )
    return text


def _sources(notes: Sequence[Note]) -> dict[str, str]:
    """Return what each value of ours came from; flags of one list share a line."""
    sources: dict[str, str] = {}
    for note in notes:
        source, before = f"{note.where}: {note.theirs}", sources.get(note.outcome)
        is_joined = before and note.outcome in LISTS
        sources[note.outcome] = f"{before}; {source}" if is_joined else source
    return sources


def _lines(
    key: str,
    value: Any,  # noqa: ANN401 - YAML content
    path: str,
    sources: Mapping[str, str],
    indent: str,
) -> Iterator[str]:
    if isinstance(value, dict) and value and any(it.startswith(f"{path}.") for it in sources):
        yield f"{indent}{in_line(key)}:"
        for name, item in value.items():
            yield from _lines(name, item, f"{path}.{name}", sources, indent + "  ")
        return
    # Words of other scripts stay readable.
    is_foreign = isinstance(value, str) and value.isprintable() and not value.isascii()
    written = json.dumps(value, ensure_ascii=False) if is_foreign else in_line(value)
    line = f"{indent}{in_line(key)}: {written}"
    yield f"{line:<{COMMENT_COLUMN}} # {sources[path]}" if path in sources else line
