"""CUDA graphs of TurboQuant with speculation: by release, and what a recipe says itself."""

from __future__ import annotations

import pytest

from sparkdeploy.errors import RecipeError
from sparkdeploy.plan.launch import serve_argv
from sparkdeploy.recipe import fallbacks
from sparkdeploy.recipe.fallbacks import launched, takes_piecewise_graphs
from sparkdeploy.recipe.load import Library, Resolved, load_recipe

UNPROVEN = "engine=cuda-0.33"
PROVEN = (0, 25, 1)
PIECEWISE = ("--compilation-config", '{"cudagraph_mode":"PIECEWISE"}')


@pytest.fixture(autouse=True)
def one_proven_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallbacks, "TURBOQUANT_FULL_GRAPHS", frozenset({PROVEN}))


def loaded(shipped: Library, *settings: str) -> Resolved:
    return load_recipe(shipped, "v2-tq", settings)


def argv_of(resolved: Resolved) -> tuple[str, ...]:
    recipe = launched(resolved.recipe, resolved.engine)
    return serve_argv(recipe, "/m")


@pytest.mark.parametrize("recipe", ["v2-tq", "v2-tq-k8v4", "v2-tq-3bit"])
def test_a_proven_release_is_left_to_capture_full_graphs(shipped: Library, recipe: str) -> None:
    resolved = load_recipe(shipped, recipe)
    assert resolved.engine.vllm == "0.25.1"
    assert launched(resolved.recipe, resolved.engine) is resolved.recipe
    assert "--compilation-config" not in argv_of(resolved)


@pytest.mark.parametrize(
    "setting",
    [
        "serve.compilation_config={cudagraph_mode: NONE}",
        "serve.compilation_config={cudagraph_mode: piecewise}",
        "serve.extra_args=['-cc.cudagraph_mode=PIECEWISE']",
        "serve.extra_args=['--compilation-config.cudagraph_mode', 'NONE']",
        *("serve.enforce_eager=true", "serve.speculative=null", "serve.kv_cache_dtype=fp8"),
    ],
)
def test_nothing_is_chosen_where_the_recipe_leaves_nothing_open(
    shipped: Library, setting: str
) -> None:
    resolved = loaded(shipped, UNPROVEN, setting)
    assert not takes_piecewise_graphs(resolved.recipe, resolved.engine)


@pytest.mark.parametrize(
    "setting",
    [
        "serve.compilation_config={cudagraph_mode: FULL}",
        "serve.compilation_config={cudagraph_mode: full_and_piecewise}",
        "serve.extra_args=['--compilation-config.cudagraph_mode=FULL_DECODE_ONLY']",
    ],
)
def test_full_graphs_are_refused_where_nobody_proved_them(shipped: Library, setting: str) -> None:
    assert loaded(shipped, setting).engine.vllm == "0.25.1"
    with pytest.raises(RecipeError) as caught:
        loaded(shipped, UNPROVEN, setting)
    assert "writes garbage under full CUDA graphs" in (caught.value.detail or "")
