"""Whatever is served, no web page and no other machine may use it unless somebody said so.

And an image enters an Engine at one place, which looks at what was loaded.
"""

from __future__ import annotations

import ast

import pytest

from sparkdeploy.plan.container import Deployment
from sparkdeploy.plan.launch import HOST_MIDDLEWARE, KEY_MIDDLEWARE, ORIGINS_FLAG
from sparkdeploy.recipe.load import load_recipe
from tests import syntax
from tests.fakes.plans import FOLDERS, model_fact
from tests.launching import container_spec
from tests.unit.conftest import REPOSITORY, SHIPPED


@pytest.mark.parametrize("is_public", [False, True])
@pytest.mark.parametrize("name", sorted(SHIPPED.recipe_files()))
def test_every_recipe_is_served_to_its_own_machine_or_with_a_key(
    name: str, is_public: bool
) -> None:
    spec = container_spec(
        load_recipe(SHIPPED, name),
        model_fact(),
        model_fact(),
        image="i",
        deployment=Deployment("main", is_public=is_public),
        folders=FOLDERS,
    )
    words = list(spec.command)
    given = {words[at]: words[at + 1] for at in range(len(words) - 1)}
    assert given[ORIGINS_FLAG] == "[]"
    assert given["--host"] == ("0.0.0.0" if is_public else "127.0.0.1")
    middlewares = [words[at + 1] for at, word in enumerate(words) if word == "--middleware"]
    assert middlewares == [KEY_MIDDLEWARE if is_public else HOST_MIDDLEWARE]


def test_an_image_is_loaded_at_one_place() -> None:
    calling = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "sparkdeploy").rglob("*.py")
        for node in ast.walk(syntax.tree(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith((".load_images", "images.load", ".import_image"))
    }
    assert calling == {"sparkdeploy/deploy/prepare.py"}
