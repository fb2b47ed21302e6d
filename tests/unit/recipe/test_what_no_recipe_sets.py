"""What a recipe may never set, written out: a name that is lost from the tables is missed here."""

from __future__ import annotations

import pytest

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.load import Library, load_recipe


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "VLLM_API_KEY", "PATH", "LD_PRELOAD"]
)
def test_a_recipe_sets_no_secret_and_no_loader(shipped: Library, name: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(shipped, "v2", [f"serve.env.{name}=x"])
    assert f"a recipe may not set {name}" in str(caught.value.detail)


@pytest.mark.parametrize(
    "flag", ["--api-key", "--api_key", "--hf-token", "--host", "--port", "--middleware", "--model"]
)
def test_a_recipe_passes_no_flag_that_is_ours(shipped: Library, flag: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(shipped, "v2", [f"serve.extra_args=['{flag}=x']"])
    assert flag.replace("_", "-") in str(caught.value.detail).replace("_", "-")
