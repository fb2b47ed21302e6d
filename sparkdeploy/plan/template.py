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
from sparkdeploy.recipe.load import library
from sparkdeploy.recipe.paths import CHAT_TEMPLATE
from sparkdeploy.recipe.unsafe import Judge, consent_hint
from sparkdeploy.stored_json import read_unlinked

if TYPE_CHECKING:
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings

MAX_BYTES = 16 << 20
"""A stranger's is judged to have no more than 1 MiB; the largest seen has 20 KiB."""
DIGITS = 32


def read_template(resolved: Resolved, settings: Settings) -> Template | None:
    """Return the recipe's chat template with its content; None where the recipe names none.

    The owner of its folder may exchange the file at any time, so it is judged by where its links
    lead now and read from there without following another one. Raises RecipeError for one that
    cannot be read, and for one that needs a consent that was not given.
    """
    named = resolved.recipe.serve.chat_template
    if named is None:
        return None
    path = Path(named).expanduser().resolve()
    origin = resolved.origins.get(CHAT_TEMPLATE)
    if question := _question(resolved, settings, path):
        wanted = resolved.wanted or resolved.recipe.name
        raise RecipeError(f"serve.chat_template: {question}", hint=consent_hint(wanted))
    try:
        content = read_unlinked(path, MAX_BYTES)
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


def _question(resolved: Resolved, settings: Settings, path: Path) -> str | None:
    """Say why a stranger's template needs consent, by where it leads now."""
    known = library(settings)
    foreign = known.foreign_files(resolved.origins)
    judge = Judge(resolved.recipe, resolved.origins, foreign, known.model_folders)
    return None if resolved.recipe.allow_unsafe else judge.template_question(path)
