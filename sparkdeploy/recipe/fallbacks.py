"""What an engine cannot do beside drafts; a recipe that leaves it open is started without.

CUDA graphs of TurboQuant: vLLM's own back end writes garbage there (vllm#53180). The plugin's was
held against a run without graphs release by release, and its `releases.TURBOQUANT_FULL_GRAPHS` is
the one list of them: the plugin claims full graphs by it, and here the recipe is completed by it.

Prefix caching on CPUs: beside drafts a model with linear attention keeps its states at block
boundaries, and what moves them there are Triton kernels alone
(`precopy_mamba_align_fused_kernel` and two others of v1/worker/mamba_utils.py in 0.32.0; 0.25.1
has them too). Without Triton the first request ends the engine. Nobody tried models of other kinds.
"""

from typing import Final

from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.flags import given_flags, last_given
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.vllm_plugin.sparkdeploy_vllm.check.releases import (
    TURBOQUANT_FULL_GRAPHS,
    release_of,
)

_FLAG: Final = "--compilation-config"
_KEY: Final = "cudagraph_mode"
_SAFE: Final = frozenset({"PIECEWISE", "NONE"})
NO_PREFIX_CACHING: Final = "vLLM for CPUs has no prefix caching beside drafts"


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
    mode = _graph_mode(recipe)
    return mode is not None and mode.upper() not in _SAFE


def takes_piecewise_graphs(recipe: Recipe, engine: Engine) -> bool:
    """Return whether `launched` chooses piecewise graphs, which the recipe leaves open."""
    return lacks_proven_graphs(recipe, engine) and _graph_mode(recipe) is None


def has_no_prefix_caching(recipe: Recipe, engine: Engine) -> bool:
    return engine.runs_on == "cpu" and recipe.serve.speculative is not None


def turns_prefix_caching_off(recipe: Recipe, engine: Engine) -> bool:
    """Return whether `launched` turns it off, which the recipe leaves open."""
    return has_no_prefix_caching(recipe, engine) and recipe.serve.enable_prefix_caching is None


def launched(recipe: Recipe, engine: Engine) -> Recipe:
    serve = recipe.serve
    if takes_piecewise_graphs(recipe, engine):
        if last_given(serve.extra_args, _FLAG) is not None:
            # vLLM takes the mapping or its keys one by one; what the recipe began goes on.
            arguments = [*serve.extra_args, f"{_FLAG}.{_KEY}=PIECEWISE"]
            serve = serve.model_copy(update={"extra_args": arguments})
        else:
            config = {**(serve.compilation_config or {}), _KEY: "PIECEWISE"}
            serve = serve.model_copy(update={"compilation_config": config})
    if turns_prefix_caching_off(recipe, engine):
        serve = serve.model_copy(update={"enable_prefix_caching": False})
    return recipe if serve is recipe.serve else recipe.model_copy(update={"serve": serve})


def proven_releases() -> str:
    """Return where full graphs are proven, as the end of a sentence."""
    if not TURBOQUANT_FULL_GRAPHS:
        return "on no vLLM yet"
    known = (".".join(map(str, release)) for release in sorted(TURBOQUANT_FULL_GRAPHS))
    return f"for MTP on vLLM {', '.join(known)}"


def _graph_mode(recipe: Recipe) -> str | None:
    """Return the `cudagraph_mode` that a recipe names, in its own field or behind a flag."""
    named = (recipe.serve.compilation_config or {}).get(_KEY)
    if named is not None:
        return str(named)
    for given in given_flags(recipe.serve.extra_args):
        if given.flag == _FLAG and ".".join(given.keys).replace("-", "_") == _KEY:
            return given.values[0] if given.values else ""
    return None
