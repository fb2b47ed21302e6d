"""Paths in recipes: relative to the file that names them, not to where the command is run."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sparkdeploy.recipe.document import Document, KeyPath

MODEL_PATH: KeyPath = ("model", "path")
FP8_SOURCE: KeyPath = ("checkpoint", "fp8_dense", "source")
CHAT_TEMPLATE: KeyPath = ("serve", "chat_template")


def anchored(document: Document, folder: Path) -> Document:
    """Make the document's relative folders absolute, as seen from `folder`; `~` is for later."""
    content = document.content
    for path in (MODEL_PATH, CHAT_TEMPLATE):
        content = _changed(content, path, lambda text: _below(folder, text))
    # A source that does not begin like a path is a repository on the hub.
    content = _changed(
        content, FP8_SOURCE, lambda text: _below(folder, text) if text.startswith(".") else text
    )
    return replace(document, content=content)


def is_folder(source: str) -> bool:
    """Whether a recipe means a folder of this machine, by how it is written."""
    return source.startswith(("/", "~", "."))


def _below(folder: Path, text: str) -> str:
    if text == "~" or text.startswith("~/"):
        return text
    # The home of a user that there is not stays a name like any other.
    return os.path.normpath(folder.absolute() / os.path.expanduser(text))  # noqa: PTH111 - see above


def _changed(
    content: Any,  # noqa: ANN401 - YAML content
    path: KeyPath,
    change: Callable[[str], str],
) -> Any:  # noqa: ANN401 - YAML content
    if not path:
        return change(content) if isinstance(content, str) and content else content
    if not isinstance(content, dict) or path[0] not in content:
        return content
    return {**content, path[0]: _changed(content[path[0]], path[1:], change)}
