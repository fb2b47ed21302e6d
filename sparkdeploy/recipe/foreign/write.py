"""An imported recipe as a file of ours; comments name the line that each value came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy import yaml_text
from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.consent import CONSENT_OPTIONS
from sparkdeploy.recipe.editors import schema_line
from sparkdeploy.recipe.words import shown
from sparkdeploy.yaml_text import in_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.recipe.foreign.translate import Translation

ORDER = ("schema", "name", "title", "engine", "image", "mods", "model", "checkpoint", "serve")
COMMENT_COLUMN = 60
LISTS = ("serve.extra_args", "mods", "serve.lora")


def recipe_text(translation: Translation) -> str:
    """Return YAML that loads as what was translated, with a comment on what each value came from.

    Raises RecipeError for content that YAML cannot hold, so that nothing of theirs ends up outside
    a text.
    """
    said = _origins(translation)
    document = translation.document.content
    content = {key: value for key, value in document.items() if key not in CONSENT_OPTIONS}
    keys = sorted(content, key=lambda key: ORDER.index(key) if key in ORDER else len(ORDER))
    lines = [schema_line("recipe")]
    lines += [f"# Imported from {shown(Path(translation.file).name)} ({translation.format})."]
    for key in keys:
        lines += _lines(key, content[key], key, said, "")
    if translation.dropped:
        lines.append("# Left out:")
    lines += [f"#   {note}" for note in translation.dropped]
    text = "\n".join(lines) + "\n"
    _require_same(text, content, translation.file)
    return text


def _require_same(text: str, content: Mapping[str, Any], file: str) -> None:
    try:
        is_same = yaml_text.load(text, "the recipe") == content
    except RecipeError:
        is_same = False
    if not is_same:
        raise RecipeError(
            f"{shown(file)} holds values that a file of ours cannot",
            hint="run it as it is: `sparkdeploy plan` reads it without a file in between",
        )


def _origins(translation: Translation) -> dict[str, str]:
    """Return what each value of ours came from; flags of one list have a line each."""
    said: dict[str, str] = {}
    for note in translation.translated:
        came = f"{note.where}: {note.theirs}"
        before = said.get(note.said)
        said[note.said] = f"{before}; {came}" if before and note.said in LISTS else came
    return said


def _lines(
    key: str,
    value: Any,  # noqa: ANN401 - YAML content
    path: str,
    said: Mapping[str, str],
    indent: str,
) -> Iterator[str]:
    below = [name for name in said if name.startswith(f"{path}.")]
    if isinstance(value, dict) and value and below:
        yield f"{indent}{in_line(key)}:"
        for name, item in value.items():
            yield from _lines(name, item, f"{path}.{name}", said, indent + "  ")
        return
    line = f"{indent}{in_line(key)}: {_written(value)}"
    yield f"{line:<{COMMENT_COLUMN}} # {said[path]}" if path in said else line


def _written(value: Any) -> str:  # noqa: ANN401 - YAML content
    """Return a value on one line; words of other scripts stay readable."""
    if isinstance(value, str) and value.isprintable() and not value.isascii():
        return json.dumps(value, ensure_ascii=False)
    return in_line(value)
