"""The fields in docs/ are made from the formats themselves; this fails when they are stale.

Write them anew: python -m pytest tests/unit/recipe/test_reference.py --update-golden
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sparkdeploy.about import FLAG, UNIT, UNSET
from sparkdeploy.gateway.stack import StackFile
from sparkdeploy.node.cluster import ClusterConfig
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.flags import JSON_FLAGS, OWNED_FLAGS, SWITCH_FLAGS, VALUE_FLAGS
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.recipe.serve import SPECULATIVE_CONFIG, Serve
from sparkdeploy.settings import ConfigFile
from sparkdeploy.yaml_text import in_line
from tests.unit.conftest import REPOSITORY
from tests.unit.docs_blocks import block, with_block
from tests.unit.recipe.fields_of_formats import FIELDS, MODELS, fields_of, models_in, parts_of

DOCS = REPOSITORY / "docs"
FLAGS = {**VALUE_FLAGS, **SWITCH_FLAGS, **JSON_FLAGS}
COLUMNS = 100
ORDER = ("model", "checkpoint", "serve", "limits", "cluster", "backends", "expect", "mods")
"""Of the sections; what the format says first is not what people ask for first."""
FORMATS: dict[str, tuple[str, type[BaseModel]]] = {
    "recipe": ("recipes.md", Recipe),
    "config.yaml": ("config.md", ConfigFile),
    "stack": ("config.md", StackFile),
    "engine": ("config.md", Engine),
}


def extra(field: FieldInfo, key: str) -> str:
    schema = field.json_schema_extra
    return str(schema.get(key, "")) if isinstance(schema, dict) else ""


def flag_of(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    return extra(field, FLAG) or (FLAGS.get(name, "") if issubclass(model, Serve) else "")


def choices(annotation: Any) -> Iterator[str]:
    for part in get_args(annotation):
        if get_args(part):
            yield from choices(part)
        elif isinstance(part, str):
            yield part


def remark(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    """Return what a field means, what it may be, the flag it becomes, and its default."""
    assert field.description is not None
    sentences = [field.description]
    allowed = list(dict.fromkeys(choices(field.annotation)))
    if not all(re.search(rf"\b{re.escape(it)}\b", field.description) for it in allowed):
        sentences.append(f"One of {', '.join(allowed)}.")
    flag = flag_of(model, name, field)
    is_named_so = flag in {f"--{name.replace('_', '-')}", SPECULATIVE_CONFIG}
    if flag.startswith("--") and "," not in flag and not is_named_so:
        sentences.append(f"`{flag}`.")
    return " ".join([*sentences, without(field)]).strip()


def without(field: FieldInfo) -> str:
    """Return what counts where a field is left out."""
    if field.is_required():
        return "Required."
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or value in (None, [], {}):
        unset = extra(field, UNSET)
        return f"Default: {unset}." if unset not in {"", "none"} else ""
    return "" if value is False else f"Default: {in_line(value)}."


def comment(text: str, indent: str) -> list[str]:
    within = " ".join(text.split())
    mark = f"{indent}# "
    return textwrap.wrap(
        within, COLUMNS, initial_indent=mark, subsequent_indent=mark, break_on_hyphens=False
    )


def listing(model: type[BaseModel], indent: str, seen: set[object]) -> Iterator[str]:
    """Yield a format as a commented YAML file, then what lies within it."""
    nested = {}
    for name, field in fields_of(model):
        kinds = models_in(field.annotation)
        if kinds and not set(kinds) <= seen:
            nested[name] = (field, kinds[0])
            continue
        if field.description is None:
            continue
        assert field.examples is not None
        key = f"{indent}{name}: {in_line(field.examples[0])}"
        again = (name, field.description)
        said = "as above" if again in seen else remark(model, name, field)
        seen.add(again)
        in_one = f"{key}  # {said}"
        yield from [in_one] if len(in_one) <= COLUMNS else [*comment(said, indent), key]
    names = [name for name in ORDER if name in nested] if model is Recipe else nested
    for name in names:
        yield from section(name, *nested[name], indent, seen)


def section(
    name: str, field: FieldInfo, kind: type[BaseModel], indent: str, seen: set[object]
) -> Iterator[str]:
    seen.add(kind)
    yield from [] if indent else [""]
    yield from comment(inspect.cleandoc(kind.__doc__ or ""), indent)
    yield f"{indent}{name}:"
    is_list = bool(parts_of(field.annotation) & {list, tuple})
    inner = list(listing(kind, indent + ("    " if is_list else "  "), seen))
    if is_list:
        first = next(at for at, line in enumerate(inner) if line.lstrip()[0] != "#")
        inner[first] = f"{indent}  - {inner[first].lstrip()}"
    yield from inner


def fields_block(name: str) -> str:
    model, seen = FORMATS[name][1], set[object]()
    lines = list(listing(model, "", seen))
    if model is ConfigFile:
        cluster = ConfigFile.model_fields["cluster"]
        lines += section("cluster", cluster, ClusterConfig, "", seen)
    return "\n".join(["```yaml", *lines, "```", ""])


@pytest.mark.parametrize("name", FORMATS)
def test_the_fields_are_what_the_format_says(name: str, pytestconfig: pytest.Config) -> None:
    page = DOCS / FORMATS[name][0]
    made = fields_block(name)
    if pytestconfig.getoption("--update-golden"):
        page.write_text(with_block(page.read_text(), name, made))
    stale = f"{page.name} is stale: python -m pytest tests/unit/recipe/test_reference.py"
    assert block(page.read_text(), name) == made, f"{stale} --update-golden"


@pytest.mark.parametrize("name", FORMATS)
def test_a_listing_is_a_file_of_its_format(name: str) -> None:
    """Every key stands where it may be written, each with an example."""
    file = yaml.safe_load(fields_block(name).strip("`\n").removeprefix("yaml"))
    assert set(file) == {key for key, _ in fields_of(FORMATS[name][1])}


def test_every_section_has_its_place() -> None:
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
    if parts_of(field.annotation) & {int, float} and bool not in parts_of(field.annotation):
        assert extra(field, UNIT)
    is_open = not field.is_required() and field.get_default(call_default_factory=True) in (
        *(None, [], {}),
    )
    assert is_open or not extra(field, UNSET), "a default is told by itself"
    assert not is_open or extra(field, UNSET) or flag_of(model, name, field), "what then?"


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
            flag = extra(field, FLAG)
            assert not (flag and issubclass(model, Serve) and name in FLAGS), name
            known = {*OWNED_FLAGS, "--lora-modules"}
            assert set(re.findall(r"--[\w-]+", flag)) <= known, name
