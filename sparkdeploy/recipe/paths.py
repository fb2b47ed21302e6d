"""Paths in recipes: where each leads.

A path is relative to the file that names it, not to where the command is run. Nothing here raises
for a home of nobody or for a name that no file can have, so `os.path` does it, not `pathlib`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdeploy.recipe.document import Document, KeyPath, with_setting
from sparkdeploy.yaml_text import in_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkdeploy.recipe.schema import Recipe

MODEL_PATH: KeyPath = ("model", "path")
FP8_SOURCE: KeyPath = ("checkpoint", "fp8_dense", "source")
CHAT_TEMPLATE: KeyPath = ("serve", "chat_template")
EACH = -1
"""In a path: each item of a list."""
ADAPTERS: KeyPath = ("serve", "lora", EACH, "path")
DRAFTERS: tuple[KeyPath, ...] = (
    ("serve", "speculative", "model"),
    ("cluster", "speculative", "model"),
)

MODEL_FILES = ("config.json", "adapter_config.json")
"""A model has the one, a LoRA adapter the other."""
MAX_TEMPLATE_BYTES = 2**20
"""Of a chat template; the largest seen has 20 KiB."""


def is_folder(source: str) -> bool:
    """Whether a recipe means a folder of this machine, by how it is written."""
    return source.startswith(("/", "~", "."))


def anchored(document: Document, folder: Path) -> Document:
    """Make the document's relative folders absolute, as seen from `folder`; `~` is for later."""

    def absolute(text: str) -> str:
        if text == "~" or text.startswith("~/"):
            return text
        return os.path.normpath(folder.absolute() / os.path.expanduser(text))  # noqa: PTH111

    content = document.content
    for path in (MODEL_PATH, CHAT_TEMPLATE, ADAPTERS):
        content = _changed(content, path, absolute)
    # What does not begin like a path is a repository on the hub.
    for path in (FP8_SOURCE, *DRAFTERS):
        content = _changed(
            content, path, lambda text: absolute(text) if text.startswith(".") else text
        )
    return replace(document, content=content)


def with_whole_path(assignment: str, folder: Path) -> str:
    """Return a `--set path=value` with relative paths made absolute, as seen from `folder`."""
    document = with_setting(Document({}, {}), assignment)
    changed = anchored(document, folder).content
    if changed == document.content:
        return assignment
    name = assignment.partition("=")[0].strip()
    for key in name.split("."):
        changed = changed[key]
    return f"{name}={in_line(changed)}"


def _changed(
    content: Any,  # noqa: ANN401 - YAML content
    path: KeyPath,
    change: Callable[[str], str],
) -> Any:  # noqa: ANN401 - YAML content
    if not path:
        return change(content) if isinstance(content, str) and content else content
    if path[0] == EACH:
        is_list = isinstance(content, list)
        return [_changed(it, path[1:], change) for it in content] if is_list else content
    if not isinstance(content, dict) or path[0] not in content:
        return content
    return {**content, path[0]: _changed(content[path[0]], path[1:], change)}


def named_paths(recipe: Recipe) -> Iterator[tuple[KeyPath, Path]]:
    """Yield where a recipe names a folder or a file of this machine, links followed."""
    source = recipe.checkpoint.fp8_dense.source
    named: dict[KeyPath, str | None] = {
        MODEL_PATH: recipe.model.path,
        FP8_SOURCE: source if source and is_folder(source) else None,
        CHAT_TEMPLATE: recipe.serve.chat_template,
    }
    named |= {("serve", "lora", at, "path"): it.path for at, it in enumerate(recipe.serve.lora)}
    for path, value in named.items():
        if value is not None:
            yield path, Path(os.path.realpath(os.path.expanduser(value)))  # noqa: PTH111
