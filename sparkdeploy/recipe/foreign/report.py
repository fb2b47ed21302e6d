"""What became of a recipe of others, in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy.recipe.words import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sparkdeploy.recipe.foreign.translate import Translation


def short_lines(translation: Translation) -> Iterator[str]:
    """Yield what a plan says of an import: how much was translated, and what was left out."""
    count = len(translation.translated)
    yield (
        f"  imported from {shown(Path(translation.file).name)} ({translation.format}): "
        f"{count} value{'s' * (count != 1)} translated, {len(translation.dropped)} left out"
    )
    yield from (f"      {note}" for note in translation.dropped)


def whole_lines(
    translation: Translation, consents: Sequence[str], warnings: Sequence[str]
) -> Iterator[str]:
    """Yield every line of theirs: translated, in need of consent, or left out and why."""
    yield f"{shown(translation.file)} ({translation.format})"
    yield f"  translated ({len(translation.translated)}):"
    for note in translation.translated:
        yield f"    {note.where}: {note.theirs} -> {note.said}"
    if consents:
        yield f"  needs your consent ({len(consents)}):"
        yield from (f"    {line}" for line in consents)
    yield f"  left out ({len(translation.dropped)}):"
    yield from (f"    {note}" for note in translation.dropped)
    if warnings:
        yield f"  may not be known to the image's vLLM ({len(warnings)}):"
        yield from (f"    {line}" for line in warnings)


def as_dict(translation: Translation) -> dict[str, Any]:
    """Return the same as plain values; a line is None for what was typed."""
    return {
        "file": translation.file,
        "format": translation.format,
        "translated": [
            {"line": note.origin.line, "theirs": note.theirs, "ours": note.said}
            for note in translation.translated
        ],
        "left_out": [
            {"line": note.origin.line, "theirs": note.theirs, "why": note.said}
            for note in translation.dropped
        ],
    }
