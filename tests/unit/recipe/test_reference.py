"""docs/recipes.md is made from the format itself; this fails when it is stale.

Write it anew: python -m pytest tests/unit/recipe/test_reference.py --update-golden
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from sparkdeploy.recipe import schema
from sparkdeploy.recipe.flags import JSON_FLAGS, SWITCH_FLAGS, VALUE_FLAGS
from sparkdeploy.recipe.schema import Recipe
from tests.unit.conftest import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest
    from pydantic.fields import FieldInfo

PAGE = REPOSITORY / "docs" / "recipes.md"
FLAGS = {**VALUE_FLAGS, **SWITCH_FLAGS, **JSON_FLAGS}
HEAD = """\
# What a recipe may say

Made from the format itself (tests/unit/recipe/test_reference.py writes it). A recipe is one YAML
file; `extends:` names another one that it changes: mappings merge, everything else replaces.
`sparkdeploy show RECIPE` prints every value with the file and line it comes from. Unknown keys,
wrong types and contradictions are told all at once, each with its file, its line and its fix.

```yaml
schema: 1
name: mine
title: A model of my own
engine: cuda-0.33
model: {repo: ORG/NAME}
serve: {max_model_len: 64K, speculative: {method: mtp, tokens: 2}}
```

Recipes in the formats of eugr's scripts and of sparkrun are read as they are:
[field-recipes.md](field-recipes.md). Fields of `serve` have the names of vLLM's flags; a flag that
has no field goes into `serve.extra_args`, and any further key of `speculative` is one of vLLM's
own. Flags, choices and names are held against the argument parser of the engine's very release
before anything is fetched ([engines.md](engines.md#arguments-of-each-release)).
"""


def rows(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each field's path, its default and its words, those within a mapping behind it."""
    words = docstrings(model)
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        nested = models_in(field.annotation)
        if not nested:
            yield path, default_of(field), said(name, field, words, prefix)
        for kind in nested:
            is_list = "list[" in str(field.annotation)
            yield from rows(kind, f"{path}{'[]' if is_list else ''}.")


def models_in(annotation: Any) -> list[type[BaseModel]]:
    kinds = (annotation, *get_args(annotation))
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def said(name: str, field: FieldInfo, words: dict[str, str], prefix: str) -> str:
    text = words.get(name, "")
    flag = FLAGS.get(name) if prefix == "serve." else None
    choices = choices_of(field.annotation)
    parts = [f"`{flag}`" if flag else "", choices, text]
    return ". ".join(part.rstrip(".") for part in parts if part)


def choices_of(annotation: Any) -> str:
    words = [word for word in re.findall(r"Literal\[([^]]*)\]", str(annotation)) if "'" in word]
    found = re.findall(r"'([^']*)'", ", ".join(words))
    return ", ".join(f"`{word}`" for word in dict.fromkeys(found))


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if value in (None, [], {}) or value is PydanticUndefined:
        return ""
    return f"`{value}`"


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the words behind each field, those of the classes that it inherits from too."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if kind.__module__ == schema.__name__:
            (tree,) = ast.parse(inspect.getsource(kind)).body
            assert isinstance(tree, ast.ClassDef)
            found |= dict(_documented(tree.body))
    return found


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, after in itertools.pairwise(body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield field.target.id, " ".join(str(after.value.value).split())


def page() -> str:
    lines = [HEAD, "| field | default | |", "|---|---|---|"]
    for path, default, text in rows(Recipe):
        lines.append(f"| `{path}` | {default} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def test_the_page_is_what_the_format_says(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(page())
    stale = "docs/recipes.md is stale: python -m pytest tests/unit/recipe/test_reference.py"
    assert PAGE.read_text() == page(), f"{stale} --update-golden"
