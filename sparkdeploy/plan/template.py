"""The chat template that a container mounts: a copy of the bytes that were judged."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy import atomic_files
from sparkdeploy.errors import RecipeError
from sparkdeploy.node.private_folder import make_private
from sparkdeploy.plan.container import Template
from sparkdeploy.recipe.consent import asked
from sparkdeploy.recipe.load import library
from sparkdeploy.recipe.paths import CHAT_TEMPLATE, MAX_TEMPLATE_BYTES
from sparkdeploy.stored_json import read_unlinked

if TYPE_CHECKING:
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings

DIGITS = 32


def read_template(resolved: Resolved, settings: Settings) -> Template | None:
    """Return the recipe's chat template with its content; None where the recipe names none.

    The owner of its folder may exchange the file at any time, so it is read from where its links
    lead now, and without following another one. Raises RecipeError for one that cannot be read, and
    for one that leads elsewhere than what the user agreed to.
    """
    named = resolved.recipe.serve.chat_template
    if named is None:
        return None
    path = Path(named).expanduser().resolve()
    origin = resolved.origins.get(CHAT_TEMPLATE)
    if resolved.allowed:
        foreign = library(settings).foreign_files(resolved.origins)
        if tuple(asked(resolved.recipe, resolved.origins, foreign)) != resolved.allowed:
            raise RecipeError(f"serve.chat_template: {named} leads elsewhere since it was allowed")
    try:
        content = read_unlinked(path, MAX_TEMPLATE_BYTES)
    except FileNotFoundError as error:
        raise RecipeError(
            f"serve.chat_template: {path} is not a file", hint=f"it is named by {origin}"
        ) from error
    except OSError as error:
        raise RecipeError(
            f"serve.chat_template: {path} cannot be read: {error.strerror}",
            hint=f"it is named by {origin}",
        ) from error
    digest = hashlib.sha256(content).hexdigest()[:DIGITS]
    return Template(settings.state_dir / "templates" / f"{digest}{path.suffix}", content)


def write_template(template: Template) -> None:
    """Write the copy that containers mount, for whatever user they run as. Raises OSError."""
    make_private(template.path.parent)
    if _holds(template.path, template.content):
        return
    atomic_files.write_bytes(template.path, template.content, atomic_files.SHARED_FILE_MODE)


def _holds(path: Path, content: bytes) -> bool:
    try:
        is_readable = stat.S_IMODE(os.lstat(path).st_mode) == atomic_files.SHARED_FILE_MODE
        return is_readable and read_unlinked(path.absolute(), len(content)) == content
    except OSError:
        return False
