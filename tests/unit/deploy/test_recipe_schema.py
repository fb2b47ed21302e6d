"""JSON schemas of what users write: they take what the loader takes, and editors find them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ValidationError

from sparkdeploy import yaml_text
from sparkdeploy.errors import RecipeError
from sparkdeploy.folders import SchemaKind, schema_file, schema_line
from sparkdeploy.recipe.engine import Engine
from sparkdeploy.recipe.load import Library, load_engine, load_recipe
from sparkdeploy.recipe.schema import Recipe
from sparkdeploy.settings import ConfigFile, load_settings
from tests.examples import examples
from tests.unit.conftest import REPOSITORY, SHIPPED
from tests.unit.recipe.fields_of_formats import fields_of, models_in, parts_of
from tests.unit.recipe.schema_files import schema_text

KINDS: tuple[SchemaKind, ...] = get_args(SchemaKind)
VALIDATORS = {kind: Draft202012Validator(json.loads(schema_text(kind))) for kind in KINDS}
RECIPES = sorted((REPOSITORY / "recipes").glob("*.yaml"))
ENGINES = sorted((REPOSITORY / "recipes" / "engines").glob("*.yaml"))
HEAD = "schema: 1\nname: mine\ntitle: t\nextends: v2\n"
WRONG = "[[]]"
"""No field takes it."""


def mistakes(kind: SchemaKind, content: object) -> list[str]:
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in VALIDATORS[kind].iter_errors(content)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_shipped_schema_is_current(kind: SchemaKind, pytestconfig: pytest.Config) -> None:
    path = REPOSITORY / "recipes" / "schema" / f"{kind}.schema.json"
    if pytestconfig.getoption("--update-golden"):
        path.write_text(schema_text(kind))
    assert path.read_text() == schema_text(kind), "stale: run this with --update-golden"
    Draft202012Validator.check_schema(json.loads(path.read_text()))


@pytest.mark.parametrize("path", [*RECIPES, *ENGINES], ids=lambda path: path.stem)
def test_a_shipped_file_is_valid_and_names_its_schema(path: Path) -> None:
    kind: SchemaKind = "recipe" if path in RECIPES else "engine"
    assert mistakes(kind, yaml_text.load_file(path)) == []
    first, _, _ = path.read_text().partition("\n")
    start, equals, place = first.partition("=")
    assert (start, equals) == ("# yaml-language-server: $schema", "=")
    assert (path.parent / place).resolve() == schema_file(kind).resolve()


SHORT_FORMS = (
    *("extends: v2", "extends: v2\nserve:\nlimits:", "extends: v2\nserve: {max_model_len: 64K}"),
    "extends: v2\nserve: {max_model_len: 64k, max_num_batched_tokens: 8K}",
    *("extends: v2\nserve: {max_model_len: auto}", "extends: v2\nserve: {max_model_len: 1.5M}"),
    "extends: v2\ncheckpoint: {fp8_dense: {mode: off}, mtp: off}\nserve: {speculative: null}",
    "extends: v2\ncluster: {speculative: off}\nbackends: {graphs: off}",
    "extends: v2\nserve: {speculative: {tokens: 3, moe_backend: marlin}}",
    "extends: v2\nserve: {speculative: {draft_sample_method: greedy}}",
    "extends: v2\nserve: {gpu_memory_utilization: 1}",
    "extends: v2\nserve: {gpu_memory_utilization: '8e-1'}",
    "extends: v2\nlimits: {startup_timeout_s: 1e3, stall_s: 0, canary_idle_s: null}",
    "extends: v2\nmodel: {served_name: [a, b]}",
    "engine: cuda-0.33\nmodel: {path: ./here}\nschema: 1",
)


@pytest.mark.parametrize("text", SHORT_FORMS)
def test_what_the_loader_takes_the_schema_takes(
    shipped: Library, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\ntitle: t\n{text}\n")
    load_recipe(shipped, str(path), ["allow_unsafe=true"])
    assert mistakes("recipe", yaml_text.load_file(path)) == []


BEYOND = (
    *("serve.port=80", "serve.max_model_len=0", "serve.gpu_memory_utilization=1.5"),
    *("serve.speculative={tokens: 65}", "limits.stall_s=-1", "limits.memory_floor_gib=513"),
    *("limits.startup_timeout_s=0", "limits.canary_idle_s=59", "cluster.min_nodes=0"),
    *("checkpoint={draft_lm_head: {rows: 63}}", "expect.end_to_end_tok_s=0"),
)


@pytest.mark.parametrize("assignment", BEYOND)
def test_a_bound_of_the_loader_is_one_of_the_schema(shipped: Library, assignment: str) -> None:
    path, _, value = assignment.partition("=")
    with pytest.raises(RecipeError):
        load_recipe(shipped, "v2", [assignment])
    content = copy.deepcopy(WHOLE)
    assert mistakes("recipe", content) == []
    set_below(content, tuple(path.split(".")), yaml_text.load(value, "here"))
    assert mistakes("recipe", content)


POOL = st.sampled_from(
    (None, True, False, 0, 1, 2, 64, 8000, -1, 0.5, 1.0, "off", "auto", "64K", "1e3", "x", "0.9")
) | st.sampled_from(("int8", [], [1], ["a"], [[]], {}, {"a": 1}, "-x", "a/b", "mtp", "full"))
WHOLE: dict[str, Any] = load_recipe(SHIPPED, "v2").recipe.model_dump(by_alias=True, mode="json")


def leaves(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in content.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


# `true` is 1 for Python, and the version of a format for nobody.
LEAVES = [path for path in leaves(WHOLE) if path != ("schema",)]


def set_below(content: Any, path: tuple[str, ...], value: object) -> None:
    """Set a value in mappings; those that are missing are made."""
    *above, last = path
    for key in above:
        if not isinstance(content.get(key), dict):
            content[key] = {}
        content = content[key]
    content[last] = value


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(LEAVES), POOL), min_size=1, max_size=2))
def test_a_recipe_of_the_format_is_one_of_the_schema(
    changes: list[tuple[tuple[str, ...], Any]],
) -> None:
    content = copy.deepcopy(WHOLE)
    for path, value in changes:
        set_below(content, path, value)
    try:
        Recipe.model_validate(content)
    except ValidationError:
        return
    assert mistakes("recipe", content) == []


def paths(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every field that stands in mappings alone, and of lists of mappings."""
    for name, field in fields_of(model):
        path = (*above, name)
        yield path
        if not parts_of(field.annotation) & {list, tuple}:
            for below in models_in(field.annotation):
                yield from paths(below, path)


def nested(path: tuple[str, ...], value: str) -> str:
    """Return the YAML of one value, a line for each mapping that it stands in."""
    lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate(path)]
    return "\n".join(lines) + f" {value}\n"


def content_of(text: str) -> dict[str, Any]:
    return dict(yaml_text.load(text, "here"))


RECIPE_PATHS = [path for path in paths(Recipe) if path[0] not in ("schema", "name", "extends")]


@pytest.mark.parametrize("path", RECIPE_PATHS, ids=".".join)
def test_each_field_of_a_recipe_that_is_wrong_is_told_with_file_and_line(
    shipped: Library, tmp_path: Path, path: tuple[str, ...]
) -> None:
    head = HEAD.replace("title: t\n", "") if path == ("title",) else HEAD
    text = head + nested(path, WRONG)
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(shipped, str(file))
    line = len(text.splitlines())
    told = caught.value.detail or ""
    assert f"{file}:{line}: {'.'.join(path)}" in told
    assert mistakes("recipe", content_of(text))


ENGINE_PATHS = [path for path in paths(Engine) if path != ("name",)]


@pytest.mark.parametrize("path", ENGINE_PATHS, ids=".".join)
def test_each_field_of_an_engine_that_is_wrong_is_told_with_file_and_line(
    tmp_path: Path, path: tuple[str, ...]
) -> None:
    (tmp_path / "engines").mkdir()
    file = tmp_path / "engines" / "mine.yaml"
    file.write_text(f"name: mine\n{nested(path, WRONG)}")
    with pytest.raises(RecipeError) as caught:
        load_engine(Library((tmp_path,)), "mine")
    assert f"{file}:{1 + len(path)}: {'.'.join(path)}" in (caught.value.detail or "")
    content = yaml_text.load_file(REPOSITORY / "recipes" / "engines" / "cuda-0.19.yaml")
    assert mistakes("engine", content) == []
    set_below(content, path, [[]])
    assert mistakes("engine", content)


CONFIG_PATHS = list(paths(ConfigFile))


@pytest.mark.parametrize("path", CONFIG_PATHS, ids=".".join)
def test_each_setting_that_is_wrong_is_told_with_file_and_line(
    tmp_path: Path, path: tuple[str, ...]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"# mine\n{nested(path, WRONG)}")
    with pytest.raises(RecipeError) as caught:
        load_settings({"SPARKDEPLOY_CONFIG_DIR": str(tmp_path)})
    assert f"{file}:2: {'.'.join(path)}: " in (caught.value.detail or "")
    assert mistakes("config", content_of(file.read_text()))


def test_a_cluster_is_part_of_the_configurations_schema() -> None:
    node = {"name": "a", "ssh": "a", "fabric": [{"interface": "e", "address": "10.0.0.1/24"}]}
    assert mistakes("config", {"cluster": {"nodes": [node, {**node, "name": "b"}]}}) == []
    assert mistakes("config", {"cluster": {"nodes": [node]}})
    assert mistakes("config", {"cluster": {"nodes": [node, {**node, "sshh": "b"}]}})
    assert mistakes("config", {"cluster": None}) == []


def test_a_file_of_the_users_names_the_schema_by_a_place_that_is_there() -> None:
    place = schema_line("recipe").removeprefix("# yaml-language-server: $schema=file://")
    assert place == str(schema_file("recipe"))
    assert schema_file("recipe").is_file()
