"""CUDA graphs of TurboQuant with speculation: full ones only where they were proven right.

vLLM's own back end writes garbage there (vllm#53180). The plugin's was held against a run without
graphs release by release, and its `releases.TURBOQUANT_FULL_GRAPHS` is the one list of them: the
plugin claims full graphs by it, and here the recipe is completed by it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from sparkdeploy.recipe import flags
from sparkdeploy.vllm_plugin.sparkdeploy_vllm.check.releases import (
    TURBOQUANT_FULL_GRAPHS,
    release_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.recipe.engine import Engine
    from sparkdeploy.recipe.schema import Recipe

_FLAG: Final = "--compilation-config"
_KEY: Final = "cudagraph_mode"
_SAFE: Final = frozenset({"PIECEWISE", "NONE"})


def lacks_proven_graphs(recipe: Recipe, engine: Engine) -> bool:
    """Return whether full graphs would be taken for right here without anybody having shown it."""
    serve = recipe.serve
    if not serve.kv_cache_dtype.startswith("turboquant") or serve.speculative is None:
        return False
    if engine.runs_on != "cuda" or serve.enforce_eager:
        return False
    # Only drafts by MTP were compared.
    return not (serve.speculative.is_mtp and release_of(engine.vllm) in TURBOQUANT_FULL_GRAPHS)


def asks_for_full_graphs(recipe: Recipe) -> bool:
    """Return whether the recipe itself names graphs that are more than piecewise."""
    mode = _mode(recipe)
    return mode is not None and mode.upper() not in _SAFE


def falls_back(recipe: Recipe, engine: Engine) -> bool:
    """Return whether `launched` chooses piecewise graphs, which the recipe leaves open."""
    return lacks_proven_graphs(recipe, engine) and _mode(recipe) is None


def launched(recipe: Recipe, engine: Engine) -> Recipe:
    """Return the recipe as its engine is started: piecewise graphs where full ones are unproven."""
    if not falls_back(recipe, engine):
        return recipe
    serve, chosen = recipe.serve, "PIECEWISE"
    if any(flags.flag_of(argument) == _FLAG for argument in serve.extra_args):
        # vLLM takes the mapping or its keys one by one; what the recipe began goes on.
        arguments = [*serve.extra_args, f"{_FLAG}.{_KEY}={chosen}"]
        safe = serve.model_copy(update={"extra_args": arguments})
    else:
        config = {**(serve.compilation_config or {}), _KEY: chosen}
        safe = serve.model_copy(update={"compilation_config": config})
    return recipe.model_copy(update={"serve": safe})


def proven_releases() -> str:
    """Return where full graphs are proven, as the end of a sentence."""
    if not TURBOQUANT_FULL_GRAPHS:
        return "on no vLLM yet"
    known = (".".join(map(str, release)) for release in sorted(TURBOQUANT_FULL_GRAPHS))
    return f"for MTP on vLLM {', '.join(known)}"


def _mode(recipe: Recipe) -> str | None:
    """Return the `cudagraph_mode` that a recipe names, in its own field or behind a flag."""
    named = (recipe.serve.compilation_config or {}).get(_KEY)
    return _behind_a_flag(recipe.serve.extra_args) if named is None else str(named)


def _behind_a_flag(arguments: Sequence[str]) -> str | None:
    """Return what stands behind `=` or in the next word; empty where nothing does."""
    for argument, after in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        name, _, value = argument.partition("=")
        if flags.flag_of(argument) == _FLAG and name.partition(".")[2].replace("-", "_") == _KEY:
            return value or after
    return None
