"""Where a deployment keeps what it compiled, and who else may use it.

What stands in a cache is run by whoever starts next on it. So one is shared only by deployments of
the same engine, model and user whose recipes are wholly the user's own words; any other has one of
its own. The keys are names of folders below `engines/` in the cache folder:

    <engine stage>/shared-<model>/<uid>-<gid>
    <engine stage>/own-<deployment>-<its recipe files and model>/<uid>-<gid>
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sparkdeploy.errors import CheckpointError
from sparkdeploy.plan.container import container_user
from sparkdeploy.plan.observed import ModelFact
from sparkdeploy.recipe.load import Library, library

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sparkdeploy.image.stages import Stage
    from sparkdeploy.plan.container import Deployment
    from sparkdeploy.plan.observed import Observed
    from sparkdeploy.recipe.load import Resolved
    from sparkdeploy.settings import Settings

ENGINE_DIGITS = 16
KEY_DIGITS = 12
_OF_NOBODY_ELSE = re.compile(r"own-.+|\d+-\d+")
"""Of one deployment alone; or as older versions made them, for all of one engine and user."""


def caches_of_engines(settings: Settings) -> Path:
    return settings.cache_dir / "engines"


def cache_folder(
    resolved: Resolved,
    settings: Settings,
    observed: Observed,
    deployment: Deployment,
    engine_stage: Stage,
) -> Path:
    """Return the folder that becomes /cache; a change of the plugin or of settings keeps it.

    While the model is missing its owner is unknown, and the folder is nobody's yet.
    """
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
    """Whether nothing but the user's own words and data decides what runs.

    Not so for a recipe with a value from outside the folders of recipes, one that was allowed what
    is unsafe, and one that lets the model bring code.
    """
    if resolved.recipe.allow_unsafe or resolved.allowed or resolved.recipe.serve.trust_remote_code:
        return False
    return not Library(own_folders).foreign_files(resolved.origins)


def refuse_nesting(observed: Observed, settings: Settings) -> None:
    """Raise CheckpointError for a model folder that would show or hold what is sparkdeploy's.

    It is mounted whole: below it a container would read the keys and caches of the others, and
    within a cache another one could write the model.
    """
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
    """Yield an engine's caches that no container mounts and no other deployment may use.

    Shared ones stay: the next `up` of their model starts sooner with them.
    """
    used = [Path(source) for source in mounted]
    for folder in sorted(engine.iterdir()):
        is_used = any(source.is_relative_to(folder) for source in used)
        if folder.is_dir() and _OF_NOBODY_ELSE.fullmatch(folder.name) and not is_used:
            yield folder


def _files(resolved: Resolved) -> list[str]:
    """Return the files a recipe was read from; what was typed has none."""
    written = (origin.file for origin in resolved.origins.values() if origin.line is not None)
    return sorted({str(Path(file).resolve()) for file in written})


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:KEY_DIGITS]
