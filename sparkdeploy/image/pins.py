"""Writes down what images of others were settled to, and what they hold (recipe/settled.py)."""

from __future__ import annotations

import errno
import json
import shlex
from typing import TYPE_CHECKING

from sparkdeploy.errors import NodeError
from sparkdeploy.node.private_folder import write_private
from sparkdeploy.recipe.settled import ImageLock, contents_as_json, lock_as_dict

if TYPE_CHECKING:
    from pathlib import Path

    from sparkdeploy.recipe.settled import ImageContents, SettledImage
    from sparkdeploy.settings import Settings


def keep(settings: Settings, tag: str, settled: SettledImage) -> None:
    """Note what a tag means from now on; NodeError where that cannot be written."""
    lock = ImageLock(settings.state_dir)
    images = lock.all() | {tag: settled}
    # What a tag is cannot be found out again: by tomorrow it may be another image.
    _write(lock.path, json.dumps(lock_as_dict(images), indent=1), is_durable=True)


def keep_contents(settings: Settings, image: str, contents: ImageContents) -> None:
    """Note what a digest or an id holds; NodeError where that cannot be written."""
    path = ImageLock(settings.state_dir).contents_path(image)
    _write(path, contents_as_json(contents).decode(), is_durable=False)


def _write(path: Path, text: str, *, is_durable: bool) -> None:
    try:
        write_private(path, text, is_durable=is_durable)
    except OSError as error:
        raise NodeError(
            f"{path} cannot be written: {error.strerror}", hint=_hint(path.parent, error)
        ) from error


def _hint(folder: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"free space below {folder}"
    listing = f"`ls -ld {shlex.quote(str(folder))}`"
    return f"{listing} shows whom it belongs to: only that user may write there"
