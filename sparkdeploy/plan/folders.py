"""What a container mounts of sparkdeploy's own: a cache, and a copy of the chat template.

What stands in a cache is run by whoever starts next on it. So one is shared only by deployments of
the same engine, model and user whose recipes are wholly the user's own words; any other has one of
its own. The keys are names of folders below `engines/` in the cache folder:

    <engine stage>/shared-<model>/<uid>-<gid>
    <engine stage>/own-<deployment>-<its recipe files and model>/<uid>-<gid>
"""

import hashlib
import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from sparkdeploy import atomic_files
from sparkdeploy.atomic_files import make_private
from sparkdeploy.errors import CheckpointError, NodeError, RecipeError
from sparkdeploy.image.stages import Stage
from sparkdeploy.plan.container import Deployment, Template, container_user
from sparkdeploy.plan.observed import ModelFact, Observed
from sparkdeploy.recipe.consent import asked
from sparkdeploy.recipe.load import Library, Resolved, library
from sparkdeploy.recipe.paths import CHAT_TEMPLATE, MAX_TEMPLATE_BYTES
from sparkdeploy.settings import Settings
from sparkdeploy.stored_json import read_unlinked

DIGITS = 32
ENGINE_DIGITS = 16
KEY_DIGITS = 12


def read_template(resolved: Resolved, settings: Settings) -> Template | None:
    """Return the recipe's chat template with its content; None where the recipe names none."""
    # Its owner may exchange it at any time: it is read from where its links lead now.
    named = resolved.recipe.serve.chat_template
    if named is None:
        return None
    path = Path(named).expanduser().resolve()
    origin = resolved.origins.get(CHAT_TEMPLATE)
    if resolved.allowed:
        # Of the template alone: several nodes and a rehearsal change other values of the recipe.
        foreign = library(settings).foreign_files(resolved.origins)
        # By the path that is read below, and no look at the recipe's a second time.
        serve = resolved.recipe.serve.model_copy(update={"chat_template": str(path)})
        recipe = resolved.recipe.model_copy(update={"serve": serve})
        now = asked(recipe, resolved.origins, foreign)
        if any(it.path == CHAT_TEMPLATE and it not in resolved.allowed for it in now):
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
    digest = hashlib.sha256(content).hexdigest()
    if resolved.template_hash not in ("", digest):
        raise RecipeError(
            f"serve.chat_template: {path} changed while the recipe was read",
            hint="type the command again: it asks about what it is then",
        )
    name = f"{digest[:DIGITS]}{path.suffix}"
    return Template(settings.state_dir / "templates" / name, content)


def write_template(template: Template) -> None:
    """Write the copy that containers mount, for whatever user they run as; or NodeError."""
    folder = template.path.parent
    try:
        make_private(folder)
        if not _holds(template.path, template.content):
            mode = atomic_files.SHARED_FILE_MODE
            atomic_files.write_bytes(template.path, template.content, mode)
    except OSError as error:
        raise NodeError(
            f"{template.path} cannot be written: {error.strerror or error}",
            hint=f"look at whose the folder is: ls -ld {shlex.quote(str(folder))}",
        ) from error


def _holds(path: Path, content: bytes) -> bool:
    try:
        is_readable = stat.S_IMODE(os.lstat(path).st_mode) == atomic_files.SHARED_FILE_MODE
        return is_readable and read_unlinked(path.absolute(), len(content)) == content
    except OSError:
        return False


def caches_of_engines(settings: Settings) -> Path:
    return settings.cache_dir / "engines"


def cache_folder(
    resolved: Resolved,
    settings: Settings,
    observed: Observed,
    deployment: Deployment,
    engine_stage: Stage,
) -> Path:
    """Return the folder that becomes /cache; nobody's yet while the model's owner is unknown."""
    engine = caches_of_engines(settings) / engine_stage.fingerprint[:ENGINE_DIGITS]
    models = [str(model.root) for model in observed.present]
    if _is_trusted(resolved, library(settings).folders):
        folder = engine / f"shared-{_digest(models)}"
    else:
        folder = engine / f"own-{deployment.name}-{_digest([*_files(resolved), '', *models])}"
    if isinstance(observed.model, ModelFact):
        uid, gid = container_user(observed.model)
        return folder / f"{uid}-{gid}"
    return folder


def _is_trusted(resolved: Resolved, own_folders: tuple[Path, ...]) -> bool:
    """Say whether nothing but the user's own words and data decides what runs."""
    if resolved.recipe.allow_unsafe or resolved.allowed or resolved.recipe.serve.trust_remote_code:
        return False
    return not Library(own_folders).foreign_files(resolved.origins)


def refuse_nesting(observed: Observed, settings: Settings) -> None:
    """Raise CheckpointError for a model folder that would show or hold what is sparkdeploy's."""
    # It is mounted whole: a container would read others' keys, or another one write the model.
    engines = caches_of_engines(settings)
    for model in observed.present:
        root = model.root.resolve()
        for folder in (engines, settings.state_dir, settings.config_dir):
            if folder.resolve().is_relative_to(root):
                raise CheckpointError(
                    f"the model folder {root} holds {folder}, which a container must not see",
                    hint="move the model's files into a folder of their own",
                )
        if root.is_relative_to(engines.resolve()):
            raise CheckpointError(
                f"the model folder {root} lies within {engines}, where containers write",
                hint="move the model's files elsewhere",
            )


def unused_caches(engine: Path, mounted: Iterable[str]) -> Iterator[Path]:
    """Yield an engine's caches that no container mounts and no other deployment may use."""
    used = [Path(source) for source in mounted]
    for folder in sorted(engine.iterdir()):
        is_used = any(source.is_relative_to(folder) for source in used)
        if folder.is_dir() and folder.name.startswith("own-") and not is_used:
            yield folder


def _files(resolved: Resolved) -> list[str]:
    """Return the files a recipe was read from; what was typed has none."""
    written = (origin.file for origin in resolved.origins.values() if origin.line is not None)
    return sorted({str(Path(file).resolve()) for file in written})


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:KEY_DIGITS]
