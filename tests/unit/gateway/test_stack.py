"""Stack files: what they say, and what is said of one that is wrong."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sparkdeploy import yaml_text
from sparkdeploy.errors import NoRecipeError, RecipeError, UsageError
from sparkdeploy.gateway import stack as stack_module
from sparkdeploy.gateway.stack import ModelEntry, Stack, StackFile, load_stack, stack_path
from sparkdeploy.recipe.document import Document, ReadFile, ValueOrigin
from sparkdeploy.recipe.load import Library, load_recipe
from sparkdeploy.settings import load_settings
from tests.examples import examples
from tests.unit.recipe.fields_of_formats import fields_of
from tests.unit.recipe.schema_files import schema_text

SCHEMA = Draft202012Validator(json.loads(schema_text("stack")))
WHOLE = """\
schema: 1
port: 8900
allowed_hosts: [spark.lan]
allowed_origins: ["https://chat.lan"]
keys_file: keys.txt
models:
  - name: coder
    recipe: v2
    set: [serve.max_model_len=64K, "model.path=./weights"]
    keep: always
    port: 8001
    aliases:
      quick: {temperature: 0, chat_template_kwargs: {enable_thinking: false}}
      coder-2:
  - name: prose
    recipe: ./mine.yaml
    idle_stop_s: 600
    aliases: [gpt-4o]
  - {name: rare, recipe: glm-4.7-flash, keep: request}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "home.yaml"
    path.write_text(text)
    return path


def loaded(folder: Path, text: str) -> Stack:
    return load_stack(write(folder, text), load_settings())


def told(folder: Path, text: str) -> str:
    """Return what is said of a wrong stack, with the lines of its mistakes."""
    with pytest.raises(RecipeError) as caught:
        loaded(folder, text)
    return f"{caught.value.message}\n{caught.value.detail or ''}"


@contextlib.contextmanager
def patched(document: Document) -> Iterator[Path]:
    """Let a file be read as a document that no YAML is written of: it holds what it holds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stack_module, "read_document", lambda _path: document)
        yield Path(__file__)


def entry(text: str) -> str:
    return f"schema: 1\nmodels:\n- name: a\n  recipe: v2\n{text}"


def test_a_stack_is_read_whole(tmp_path: Path) -> None:
    stack = loaded(tmp_path, WHOLE)
    assert SCHEMA.is_valid(yaml_text.load(WHOLE, "here"))
    assert (stack.name, stack.path, stack.host, stack.port) == (
        *("home", tmp_path / "home.yaml", "127.0.0.1", 8900),
    )
    assert (stack.allowed_hosts, stack.allowed_origins) == (["spark.lan"], ["https://chat.lan"])
    assert stack.keys_file == tmp_path / "keys.txt"
    coder, prose, rare = stack.models
    assert coder.assignments == ["serve.max_model_len=64K", f"model.path={tmp_path}/weights"]
    assert coder.other_names == {
        "quick": {"temperature": 0, "chat_template_kwargs": {"enable_thinking": False}},
        "coder-2": {},
    }
    assert (coder.keep, coder.port, coder.idle_stop_s) == ("always", 8001, None)
    assert (prose.recipe, prose.idle_stop_s) == (str(tmp_path / "mine.yaml"), 600)
    assert (prose.keep, prose.other_names) == ("idle", {"gpt-4o": {}})
    assert (rare.recipe, rare.keep, rare.port) == ("glm-4.7-flash", "request", None)


def test_the_least_that_a_stack_says(tmp_path: Path) -> None:
    stack = loaded(tmp_path, entry(""))
    assert (stack.port, stack.keys_file, stack.models[0].aliases) == (8800, None, {})


@pytest.mark.parametrize("model", [StackFile, ModelEntry], ids=["stack", "model"])
def test_each_field_that_is_wrong_is_told_with_file_and_line(
    tmp_path: Path, model: type[StackFile | ModelEntry]
) -> None:
    for name, _ in fields_of(model):
        content: dict[str, Any] = {"schema": 1, "models": [{"name": "a", "recipe": "v2"}]}
        (content if model is StackFile else content["models"][0])[name] = [[]]
        found = told(tmp_path, yaml_text.dump(content))
        assert f"{tmp_path / 'home.yaml'}:" in found
        assert f": {name}" in found or f"models.0.{name}" in found, found
        assert not SCHEMA.is_valid(content), name


WRONG = {
    "models: []\nschema: 1": "models: [] is wrong",
    "schema: 2\nmodels: [{name: a, recipe: v2}]": "schema: 2 is wrong",
    "schema: 1\nmodels:\n- {name: a, recipe: v2}\nmodels: []": "models: the key stands twice",
    entry("  recipe: v3"): ":5: models.0.recipe: the key stands twice",
    entry("  kepp: idle"): ":5: models.0.kepp: unknown key; did you mean keep?",
    entry("hosts: x"): ":5: hosts: unknown key; did you mean host?",
    entry("  keep: off"): "models.0.keep: False is wrong",
    entry("- {name: a, recipe: v3}"): ":5: models.1.name: a is a name twice",
    entry("- {name: b, recipe: v3, aliases: [a]}"): ":5: models.1.aliases.0: a is a name twice",
    entry("  aliases: [a]"): "models.0.aliases.0: a is a name twice",
    entry("  aliases: [b, b]"): "models.0.aliases.1: b is a name twice",
    entry("  aliases: {b: , b: }"): "models.0.aliases.b: the key stands twice",
    entry('  aliases: {"": {}}'): "models.0.aliases",
    entry("  aliases: {b: {model: c}}"): "model is what each request says itself",
    entry("  aliases: {b: {Stream: true}}"): "Stream is what each request says itself",
    entry("  aliases: {b: {temperature: .nan}}"): "models.0.aliases.b",
    entry("  aliases: {b: {x: 2026-01-01}}"): "models.0.aliases.b",
    entry("  aliases: {b: {1: x}}"): "models.0.aliases.b",
    entry("  aliases: {b: 0}"): "models.0.aliases",
    entry("  set: [serve.port]"): ":5: models.0.set.0",
    entry("  set: [=1]"): "models.0.set.0",
    entry("  set: [name=x]"): "models.0.set.0: --set cannot change name",
    entry("  set: ['x=[']"): "models.0.set.0: --set x: the value is not valid YAML",
    entry("  set: [allow_unsafe=true]"): "no file consents for you to allow_unsafe",
    entry("  set: ['allow_known_bad= yes']"): "no file consents for you to allow_known_bad",
    entry("  set: ['serve={port: 1}']"): "serve.port is the gateway's own",
    entry("  set: [model.served_name=x]"): "model.served_name is the gateway's own",
    entry("  keep: always\n  idle_stop_s: 60"): "idle_stop_s: it means nothing with keep: always",
    entry("  idle_stop_s: 0"): "models.0.idle_stop_s: 0 is wrong",
    entry("  idle_stop_s: true"): "models.0.idle_stop_s: True is wrong",
    entry("  port: 80"): "models.0.port: 80 is wrong",
    entry("  port: 8800"): "models.0.port: port 8800 is given twice",
    entry("  recipe2: ''"): "unknown key; did you mean recipe?",
    "schema: 1\nmodels:\n- name: a\n  recipe: ''": "models.0.recipe: '' is wrong",
    "schema: 1\nmodels:\n- name: A\n  recipe: v2": "models.0.name: 'A' is wrong",
    "schema: 1\nmodels:\n- name: a-replaced\n  recipe: v2": "models.0.name",
    "schema: 1\nmodels:\n- recipe: v2": "models.0.name: missing",
    entry("host: 0.0.0.0"): ":5: host: 0.0.0.0 can be reached by others",
    entry('host: "::"'): "host: :: can be reached by others",
    entry("host: spark.lan"): "host: 'spark.lan' is wrong",
    entry("host: ''"): "host: '' is wrong",
    entry("allowed_origins: ['*']"): "allowed_origins.0: '*' is wrong",
    entry("allowed_origins: ['https://x/y']"): "allowed_origins.0",
    entry("allowed_hosts: ['a,b']"): "allowed_hosts.0",
    entry("keys_file: ''"): "keys_file: '' is wrong",
    entry("longest_wait_s: 0"): "longest_wait_s: 0 is wrong",
    entry("smallest_stay_s: -1"): "smallest_stay_s: -1 is wrong",
    entry("name: ../x"): "name: '../x' is wrong",
}


@pytest.mark.parametrize(("text", "said"), WRONG.items(), ids=range(len(WRONG)))
def test_what_is_wrong_is_told(tmp_path: Path, text: str, said: str) -> None:
    assert said in told(tmp_path, text)


FINE = (
    *('host: "::1"', "host: localhost", "host: 0.0.0.0\nkeys_file: ~/keys", "host: 127.0.0.2"),
    *("smallest_stay_s: 0", "  aliases: []"),
    "  aliases: {openai/gpt-4o: null, tiny: {stop: [a], seed: 0, logit_bias: null}}",
    *("  set: []", "  set: ['serve.max_model_len=']", "name: home-2"),
)


@pytest.mark.parametrize("text", FINE)
def test_what_may_be_written(tmp_path: Path, text: str) -> None:
    assert loaded(tmp_path, entry(text)).models[0].name == "a"
    assert SCHEMA.is_valid(yaml_text.load(entry(text), "here"))


ODD = st.sampled_from(
    (None, True, False, 0, 1, -1, 1.5, "", " ", "a", "b", "off", "x=1", "=", "model", "v2", "../x")
) | st.sampled_from(
    ("::1", "0.0.0.0", "serve.port=1", "x.y=[", "\udcff", "\0", "é", "1e3", "a-kept-1")
)
VALUES = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD, inner, max_size=3)
)
ENTRIES = st.fixed_dictionaries(
    {"name": ODD | st.just("c"), "recipe": ODD | st.just("v3")},
    optional=dict.fromkeys(("set", "aliases", "keep", "idle_stop_s", "port"), VALUES),
)
FILES = st.fixed_dictionaries(
    {"schema": st.just(1), "models": st.lists(ENTRIES, max_size=3) | VALUES},
    optional=dict.fromkeys([name for name, _ in fields_of(StackFile)][1:-1], VALUES),
)


@settings(max_examples=examples(300), deadline=None)
@given(FILES)
def test_whatever_stands_in_a_stack_it_is_read_or_refused_in_words(content: dict[str, Any]) -> None:
    document = Document(content, {("models",): ValueOrigin("a stack", 1, ReadFile(Path(), ""))})
    with patched(document) as path:
        try:
            stack = load_stack(path, load_settings())
        except RecipeError:
            return
    assert SCHEMA.is_valid(content)
    names = [name for it in stack.models for name in (it.name, *it.other_names)]
    assert len(set(names)) == len(names)
    json.dumps([it.other_names for it in stack.models])


def test_what_models_have_in_common_may_be_written_once(tmp_path: Path) -> None:
    text = (
        "schema: 1\nmodels:\n- &all {name: a, recipe: v2, idle_stop_s: 60}\n- {<<: *all, name: b}"
    )
    assert [it.idle_stop_s for it in loaded(tmp_path, text).models] == [60, 60]


def test_models_are_counted_and_texts_are_bounded(tmp_path: Path) -> None:
    many = "schema: 1\nmodels:\n" + "".join(f"- {{name: m{it}, recipe: v2}}\n" for it in range(33))
    assert "models: " in told(tmp_path, many)
    assert "larger than" in told(tmp_path, entry(f"  aliases: [{'x' * 300_000}]"))
    assert "models.0.aliases" in told(tmp_path, entry(f"  aliases: [{'x' * 300}]"))


def test_a_recipe_and_a_stack_are_told_apart(tmp_path: Path, shipped: Library) -> None:
    own, path = load_settings(), write(tmp_path, entry(""))
    assert stack_path(str(path), own) == path
    with pytest.raises(NoRecipeError, match="is a stack of several models"):
        load_recipe(shipped, str(path))
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("schema: 1\nname: mine\ntitle: t\nextends: v2\n")
    with pytest.raises(RecipeError, match="is no stack: it has no `models:`"):
        load_stack(recipe, own)
    with pytest.raises(UsageError, match="there is no stack file"):
        load_stack(tmp_path / "none.yaml", own)
    bare = tmp_path / "home"
    bare.write_text(path.read_text())
    assert stack_path(str(bare), own) == bare
    for other in (str(recipe), str(tmp_path / "none.yaml"), str(tmp_path), "v2", "", None):
        assert stack_path(other, own) is None


def test_a_recipe_of_the_stack_is_looked_up_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    stack = entry("- {name: b, recipe: below/x}\n- {name: c, recipe: ../y.yml}")
    write(tmp_path / "below", stack)
    monkeypatch.chdir(tmp_path)
    found = load_stack((tmp_path / "below" / "home.yaml").relative_to(tmp_path), load_settings())
    assert [it.recipe for it in found.models] == [
        *("v2", f"{tmp_path}/below/below/x", f"{tmp_path}/y.yml")
    ]
    assert found.path == tmp_path / "below" / "home.yaml"
