"""What of a recipe is rehearsed, and that all that is left out is said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.recipe.load import load_engine, load_recipe
from sparkdeploy.rehearsal.miniature import (
    drafter_beside,
    make_drafter,
    miniature_of,
    without_speculation,
)

if TYPE_CHECKING:
    from sparkdeploy.recipe.load import Library
    from sparkdeploy.recipe.schema import Serve
    from sparkdeploy.rehearsal.miniature import Miniature

TWIN = Path("/data/m/twin")


def rehearsed(shipped: Library, recipe: str, *settings: str) -> Miniature:
    engine = load_engine(shipped, "cpu-0.32")
    return miniature_of(load_recipe(shipped, recipe, settings), engine=engine, twin=TWIN, port=8123)


def test_conversion_and_speculation_are_the_recipe_s_own(shipped: Library) -> None:
    own = load_recipe(shipped, "v2").recipe
    small = rehearsed(shipped, "v2").resolved
    assert small.engine.name == small.recipe.engine == "cpu-0.32"
    assert small.recipe.checkpoint == own.checkpoint
    assert small.recipe.serve.speculative == own.serve.speculative
    assert small.recipe.model.path == str(TWIN)
    assert small.recipe.serve.port == 8123


def test_what_only_cuda_has_is_dropped_and_said(shipped: Library) -> None:
    made = rehearsed(
        shipped, "v2", "serve.extra_args=[--seed=1]", "serve.load_format=fastsafetensors"
    )
    serve = made.resolved.recipe.serve
    assert (serve.attention_backend, serve.load_format, serve.extra_args) == (None, None, [])
    assert made.dropped[0] == "engine cuda-0.25 -> cpu-0.32"
    for field in ("attention_backend", "load_format", "max_model_len", "extra_args"):
        assert [note for note in made.dropped if note.startswith(f"serve.{field}=")]


def test_nothing_is_compiled_unless_the_recipe_says_so(shipped: Library) -> None:
    def serve_of(*settings: str) -> Serve:
        return rehearsed(shipped, "v2", *settings).resolved.recipe.serve

    disabled = {"TORCH_COMPILE_DISABLE": "1"}
    assert serve_of().env == disabled
    own = serve_of("serve.env={OMP_NUM_THREADS: '2'}").env
    assert own == {**disabled, "OMP_NUM_THREADS": "2"}
    assert serve_of("serve.enforce_eager=false").env == {}


def test_a_dflash_drafter_becomes_one_made_for_the_twin(shipped: Library) -> None:
    made = rehearsed(shipped, "dflash", "serve.speculative.attention_backend=FLASH_ATTN")
    own = load_recipe(shipped, "dflash").recipe
    drafting = made.resolved.recipe.serve.speculative
    assert drafting is not None
    assert own.serve.speculative is not None
    assert (drafting.method, drafting.tokens) == ("dflash", own.serve.speculative.tokens)
    assert drafting.model == str(drafter_beside(TWIN))
    assert "attention_backend" not in drafting.further
    (drafter,) = made.resolved.recipe.companions
    assert (drafter.repo, drafter.path) == (None, drafting.model)
    assert [note for note in made.dropped if "-> a drafter made for the twin" in note]
    assert made.resolved.recipe.checkpoint == own.checkpoint


@pytest.mark.parametrize(("recipe", "is_made"), [("dflash", True), ("v2", False)])
def test_a_drafter_is_made_where_the_recipe_drafts_with_one(
    shipped: Library, tmp_path: Path, recipe: str, is_made: bool
) -> None:
    make_drafter(load_recipe(shipped, recipe), tmp_path / "twin", TinyShape(), seed=1)
    assert (drafter_beside(tmp_path / "twin") / "config.json").is_file() is is_made


def test_the_text_to_compare_with_differs_in_speculation_alone(shipped: Library) -> None:
    small = rehearsed(shipped, "v2").resolved
    plain = without_speculation(small).recipe
    assert plain.serve.speculative is None
    speculative = small.recipe.serve.speculative
    serve = plain.serve.model_copy(update={"speculative": speculative})
    assert plain.model_copy(update={"serve": serve}) == small.recipe
