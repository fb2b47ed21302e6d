"""Paths in recipes: where each leads, and which of them a recipe from elsewhere may name.

A path is relative to the file that names it, not to where the command is run. Nothing here raises
for a home of nobody or for a name that no file can have, so `os.path` does it, not `pathlib`.
"""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sparkdeploy.recipe.document import Document, KeyPath
    from sparkdeploy.recipe.schema import Recipe

MODEL_PATH: KeyPath = ("model", "path")
FP8_SOURCE: KeyPath = ("checkpoint", "fp8_dense", "source")
CHAT_TEMPLATE: KeyPath = ("serve", "chat_template")
DRAFTERS: tuple[KeyPath, ...] = (
    ("serve", "speculative", "model"),
    ("cluster", "speculative", "model"),
)
MODEL_FILES = ("config.json", "adapter_config.json")
"""A model has the one, a LoRA adapter the other."""
TEMPLATE_SUFFIX = ".jinja"
MAX_TEMPLATE_BYTES = 2**20


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
    for path in (MODEL_PATH, CHAT_TEMPLATE):
        content = _changed(content, path, absolute)
    content = _changed_adapters(content, absolute)
    # What does not begin like a path is a repository on the hub.
    for path in (FP8_SOURCE, *DRAFTERS):
        content = _changed(
            content, path, lambda text: absolute(text) if text.startswith(".") else text
        )
    return replace(document, content=content)


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


def _changed_adapters(content: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - YAML
    """Change the folder of each adapter that has one."""
    adapters = content.get("serve", {}).get("lora") if _is_mapping(content, "serve") else None
    if not isinstance(adapters, list):
        return content
    changed = [_changed(adapter, ("path",), change) for adapter in adapters]
    return {**content, "serve": {**content["serve"], "lora": changed}}


def _is_mapping(content: Any, key: str) -> bool:  # noqa: ANN401 - YAML content
    return isinstance(content, dict) and isinstance(content.get(key), dict)


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


def template_question(meant: Path, beside: Path) -> str | None:
    """Say why a chat template is no harmless one; None where it is.

    It is a file beside its recipe: what vLLM is given as a template can be read back from it.
    """
    if reason := _not_below(meant, beside):
        return reason
    if meant.suffix != TEMPLATE_SUFFIX:
        return f"{meant} does not end in {TEMPLATE_SUFFIX}: another file's text could be read"
    status = _status(meant)
    if status is not None and not stat.S_ISREG(status.st_mode):
        return f"{meant} is not a regular file"
    if status is not None and status.st_size > MAX_TEMPLATE_BYTES:
        return f"{meant} has {status.st_size} bytes, and {MAX_TEMPLATE_BYTES} are the most"
    return None


def model_question(meant: Path, beside: Path, model_folders: tuple[Path, ...]) -> str | None:
    reasons = [_not_below(meant, folder) for folder in model_folders]
    if all(reasons) and (reason := _not_below(meant, beside)):
        return reason
    is_models = any(os.path.isfile(meant / name) for name in MODEL_FILES)  # noqa: PTH113
    if _status(meant) is not None and not is_models:
        return f"{meant} has no config.json: it is no model's folder"
    return None


def _not_below(meant: Path, folder: Path) -> str | None:
    """Say why `meant` is not what a folder holds openly; both have their links followed."""
    folder = Path(os.path.realpath(folder))
    if not meant.is_relative_to(folder):
        missing = "" if os.path.lexists(meant) else "does not exist, and "
        return f"{meant} {missing}lies outside the folders of models and of the recipe"
    if _holds_more_than_recipes(folder):
        return f"{meant} lies in {folder}, which holds more than recipes"
    hidden = [part for part in meant.relative_to(folder).parts if part.startswith(".")]
    return f"{meant} lies in the hidden {hidden[0]}" if hidden else None


def _holds_more_than_recipes(folder: Path) -> bool:
    """Whether it is a home, a folder that holds one, or one that everybody writes into."""
    status = _status(folder)
    if status is not None and status.st_mode & stat.S_IWOTH:
        return True
    homes = [os.path.expanduser("~")]  # noqa: PTH111
    # Under sudo the user and the folder's owner are two.
    for uid in {os.getuid(), status.st_uid if status else os.getuid()}:
        with suppress(KeyError):
            homes.append(pwd.getpwuid(uid).pw_dir)
    return any(Path(os.path.realpath(home)).is_relative_to(folder) for home in homes)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
