"""docs/recipes.md is made from the formats themselves; this fails when it is stale.

Write it anew: python -m pytest tests/unit/recipe/test_reference.py --update-golden
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, get_args

import pytest
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from sparkdeploy.about import FLAG, UNIT, UNSET
from sparkdeploy.gateway.stack import StackFile
from sparkdeploy.node.cluster import ClusterConfig
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.flags import JSON_FLAGS, OWNED_FLAGS, SWITCH_FLAGS, VALUE_FLAGS
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.recipe.serve import Serve
from sparkdeploy.settings import ConfigFile
from sparkdeploy.yaml_text import in_line
from tests.unit.conftest import REPOSITORY
from tests.unit.recipe.fields_of_formats import FIELDS, MODELS, fields_of, models_in, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

PAGE = REPOSITORY / "docs" / "recipes.md"
FLAGS = {**VALUE_FLAGS, **SWITCH_FLAGS, **JSON_FLAGS}
ORDER = ("model", "checkpoint", "serve", "limits", "cluster", "backends", "expect", "mods")
"""Of the sections; what the format says first is not what people ask for first."""
HEAD = """\
# What a recipe may say

Every field of a recipe, of an engine's file and of config.yaml: what it means, what its value is,
what counts where it is left out, one that may be written, and what of vLLM it becomes. The page is
made from the formats themselves (tests/unit/recipe/test_reference.py writes it).

```yaml
# yaml-language-server: $schema=...
schema: 1
name: mine
title: A model of my own
engine: cuda-0.33
model: {repo: ORG/NAME}
serve: {max_model_len: 64K, speculative: {method: mtp, tokens: 2}}
```

| you want | it is |
|---|---|
| to begin | `sparkdeploy new NAME --from RECIPE` writes a recipe that changes another, its usual values as comments; `--model ORG/NAME` one for a model of which there is none |
| to change one of ours | `extends: NAME`, or the path of a file: mappings merge, everything else replaces |
| one other value for one run | `up RECIPE --set PATH=VALUE`; `--port` and `--max-len` for the two that are changed most |
| to see every value, and where it was written | `sparkdeploy show RECIPE` |
| help while you type | the JSON schema that `new` and `recipe import` name in their first line (`sparkdeploy config` shows where it lies); VS Code (YAML of Red Hat), Neovim and others read it and complete fields, say what they mean and underline mistakes |
| a recipe in the format of eugr's scripts or of sparkrun | they are read as they are ([field-recipes.md](field-recipes.md)) |

Unknown keys, wrong types and contradictions are told all at once, each with its file, its line and
its fix. Flags, choices and names are held against the argument parser of the engine's very release
before anything is fetched ([engines.md](engines.md#arguments-of-each-release)).
"""  # noqa: E501 - rows of a table
ENGINE_HEAD = """\
A recipe names its `engine`; `sparkdeploy list` shows those that are there, and
`~/.config/sparkdeploy/recipes/engines/NAME.yaml` adds one. [engines.md](engines.md) tells what is
known of ours. None of its fields becomes a flag of vLLM's.
"""
CONFIG_HEAD = """\
`~/.config/sparkdeploy/config.yaml`: what belongs to you and the machine rather than to a recipe.
`SPARKDEPLOY_` and a key in capitals is the same as a variable, which goes first; `sparkdeploy
config` shows every value and where it comes from. No field becomes a flag of vLLM's but where it
says so.
"""
STACK_HEAD = """\
Several models behind one address: what [gateway.md](gateway.md) is about. `sparkdeploy plan`, `up`,
`gateway` and `export llama-swap` take its file. None of its fields becomes a flag of vLLM's.
"""
NO_FLAGS = "None of these becomes a flag of vLLM's."


def told_of(field: FieldInfo, key: str) -> str:
    extra = field.json_schema_extra
    return str(extra.get(key, "")) if isinstance(extra, dict) else ""


def flag_of(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    return told_of(field, FLAG) or (FLAGS.get(name, "") if issubclass(model, Serve) else "")


def is_number(field: FieldInfo) -> bool:
    return bool(parts_of(field.annotation) & {int, float})


def value_cell(field: FieldInfo) -> str:
    """Return what a number counts, the choices, or what kind of value it is."""
    parts = parts_of(field.annotation)
    if bool in parts:
        return "`true`, `false`"
    words = [word for word in ordered_choices(field.annotation) if isinstance(word, str)]
    choices = ", ".join(f"`{word}`" for word in words)
    if list in parts:
        kind = "text, or a list" if str in parts else "a list"
        return f"{kind}{' of ' + choices if choices else ''}"
    is_mapping = dict in parts or models_in(field.annotation)
    kinds = [told_of(field, UNIT), choices, "a mapping" if is_mapping else ""]
    return " or ".join(filter(None, kinds)) or ("text" if str in parts else "1")


def ordered_choices(annotation: Any) -> Iterator[Any]:
    for part in get_args(annotation):
        if get_args(part):
            yield from ordered_choices(part)
        elif not isinstance(part, type):
            yield part


def default_cell(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if value in (None, [], {}) or value is PydanticUndefined:
        return told_of(field, UNSET) or ("left to vLLM" if flag_of(model, name, field) else "none")
    return f"`{in_line(value)}`"


def flag_cell(flag: str) -> str:
    return re.sub(r"--[\w-]+", lambda found: f"`{found[0]}`", flag) or "none"


def table(model: type[BaseModel], path: str) -> Iterator[str]:
    rows = [(name, field) for name, field in fields_of(model) if field.description is not None]
    if not rows:
        return
    flags = [flag_of(model, name, field) for name, field in rows]
    columns = ["field", "what it means", "value", "left out", "example"]
    columns += ["becomes"] if any(flags) else []
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for (name, field), flag in zip(rows, flags, strict=True):
        assert field.description is not None
        assert field.examples is not None
        cells = [f"`{path}{name}`", field.description, value_cell(field)]
        cells += [default_cell(model, name, field), f"`{in_line(field.examples[0])}`"]
        cells += [flag_cell(flag)] if any(flags) else []
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""
    if not any(flags):
        yield NO_FLAGS
        yield ""


def section(model: type[BaseModel], path: str, level: int, told: set[type]) -> Iterator[str]:
    """Yield a heading, the words of the format, its fields, and what lies within it."""
    if model in told:
        return
    told.add(model)
    if path:
        yield f"{'#' * min(level, 4)} `{path.removesuffix('.')}`"
        yield ""
        yield inspect.cleandoc(model.__doc__ or "")
        yield ""
    yield from table(model, path)
    yield from within(model, path, level, told)


def within(model: type[BaseModel], path: str, level: int, told: set[type]) -> Iterator[str]:
    nested = dict(fields_of(model))
    names = [name for name in ORDER if name in nested] if model is Recipe else list(nested)
    for name in names:
        for kind in models_in(nested[name].annotation):
            is_list = parts_of(nested[name].annotation) & {list, tuple}
            below = f"{path}{name}{'[]' if is_list else ''}."
            yield from section(kind, below, level + 1, told)


def page() -> str:
    told: set[type] = set()
    lines = [HEAD, "## The recipe itself", "", *section(Recipe, "", 1, told)]
    others = ["## An engine's file", "", ENGINE_HEAD, *section(Engine, "", 2, told)]
    others += ["## A stack file", "", STACK_HEAD, *section(StackFile, "", 2, told)]
    others += ["## config.yaml", "", CONFIG_HEAD, *section(ConfigFile, "", 2, told)]
    others += section(ClusterConfig, "cluster.", 3, told)
    text = "\n".join(lines) + "\n".join(others).replace(f"\n{NO_FLAGS}\n", "")
    return text.rstrip("\n") + "\n"


def test_the_page_is_what_the_format_says(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(page())
    stale = "docs/recipes.md is stale: python -m pytest tests/unit/recipe/test_reference.py"
    assert PAGE.read_text() == page(), f"{stale} --update-golden"


def test_every_section_stands_on_the_page() -> None:
    nested = {name for name, field in fields_of(Recipe) if models_in(field.annotation)}
    assert nested == set(ORDER)


@pytest.mark.parametrize(("model", "name", "field"), FIELDS)
def test_everything_is_told_of_every_field(
    model: type[BaseModel], name: str, field: FieldInfo
) -> None:
    assert field.description
    assert field.description.endswith(".")
    assert len(field.description) <= 180
    assert field.examples
    if is_number(field):
        assert told_of(field, UNIT)
    is_open = not field.is_required() and field.get_default(call_default_factory=True) in (
        *(None, [], {}),
    )
    assert is_open or not told_of(field, UNSET), "a default is told by itself"
    assert not is_open or told_of(field, UNSET) or flag_of(model, name, field), "what then?"


@pytest.mark.parametrize(("model", "name", "field"), FIELDS)
def test_every_example_may_be_written(model: type[BaseModel], name: str, field: FieldInfo) -> None:
    assert field.examples is not None
    wrong: list[Any] = []
    try:
        model.model_validate({name: field.examples[0]})
    except ValidationError as error:
        wrong = [it for it in error.errors() if it["loc"][:1] == (name,)]
    assert wrong == []


def test_a_flag_is_told_once_and_is_one_of_vllms() -> None:
    for model in MODELS:
        for name, field in fields_of(model):
            flag = told_of(field, FLAG)
            assert not (flag and issubclass(model, Serve) and name in FLAGS), name
            known = {*OWNED_FLAGS, "--lora-modules"}
            assert set(re.findall(r"--[\w-]+", flag)) <= known, name
