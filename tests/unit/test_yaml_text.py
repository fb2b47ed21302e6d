"""YAML of strangers is read within limits: whatever it is, a message and never a crash."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sparkdeploy import yaml_text
from sparkdeploy.cli.command_table import COMMANDS
from sparkdeploy.cli.main import program
from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.load import load_recipe
from tests.examples import examples
from tests.unit.conftest import SHIPPED

HEAD = "schema: 1\nname: their\ntitle: t\nextends: v2\n"
MEMORY_BYTES = 768 * 2**20
SECONDS = 20


def bomb(levels: int, width: int = 9) -> str:
    """Aliases of aliases: `width` to the power of `levels` values in a few hundred bytes."""
    lines = ["a0: &a0 [x]"]
    for level in range(1, levels):
        aliases = ", ".join([f"*a{level - 1}"] * width)
        lines.append(f"a{level}: &a{level} [{aliases}]")
    return "\n".join(lines)


HOSTILE = {
    "aliases of aliases": bomb(10),
    "merges of merges": "a0: &a0 {k: v}\n"
    + "\n".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 31)),
    "200 kB of brackets": "[" * 200_000,
    "deep below a key": "serve: " + "[" * 33 + "]" * 33,
    "an anchor in itself": "serve: &s {env: *s}",
    "thousands of keys": "\n".join(f"k{n}: 1" for n in range(15_000)),
    "as many keys as are read": "\n".join(f"k{n}: 1" for n in range(1_000)),
    "an anchor in a key": "&k serve: {? *k : 1}",
    "a mapping as a key": "? {a: 1}\n: 2",
    "a null byte": "title: a\0b",
    "an escaped surrogate": 'title: "\\ud800"',
    "a hex number of 100 kB": "serve: {port: 0x" + "f" * 100_000 + "}",
    "an endless float": "serve: {gpu_memory_utilization: 1.0e+999999}",
    "no number": "limits: {startup_timeout_s: .nan}",
    "a day that is none": "title: 2020-13-45",
    "a date among settings": "serve: {override_generation_config: {a: 2020-01-01}}",
    "binary": "title: !!binary aGk=",
    "a tag of Python's": "title: !!python/object/apply:os.system [id]",
    "a set": "serve: !!set {a, b}",
    "a tag by a directive": "%TAG ! tag:yaml.org,2002:\n---\ntitle: !binary aGk=",
    "a key twice": "title: a\ntitle: b",
    "a bare equals sign": "title: =",
    "a parent with a null byte": 'extends: "a\\0"',
    "a parent that never ends": "extends: /dev/zero",
    "itself": "extends: their.yaml",
    "a long path": "model: {path: " + "a/" * 5000 + "}",
}
"""Whole documents, or lines that are put below a valid head."""


def text_of(body: str) -> str:
    return body if body.startswith(("[", "{", "- ", "? ", "%")) else HEAD + body + "\n"


def outcome(text: bytes, folder: Path) -> RecipeError | None:
    path = folder / "their.yaml"
    path.write_bytes(text)
    try:
        load_recipe(SHIPPED, str(path))
    except RecipeError as error:
        return error
    return None


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_yaml_is_a_mistake_of_the_recipe(tmp_path: Path, body: str) -> None:
    error = outcome(text_of(body).encode(), tmp_path)
    assert error is not None
    assert len(str(error.detail)) < 50_000


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


BOMBS = ["aliases of aliases", "merges of merges", "200 kB of brackets", "a hex number of 100 kB"]


@pytest.mark.outside
def test_show_survives_every_bomb_in_little_time_and_memory(tmp_path: Path) -> None:
    for name in BOMBS:
        (tmp_path / f"{BOMBS.index(name)}.yaml").write_text(text_of(HOSTILE[name]))
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from sparkdeploy.cli.command_table import COMMANDS\n"
        "from sparkdeploy.cli.main import program\n"
        "from sparkdeploy.errors import RecipeError\n"
        "for path in sys.argv[1:]:\n"
        "    error = CliRunner().invoke(program(COMMANDS), ['show', path]).exception\n"
        "    assert isinstance(error, RecipeError), (path, error)\n"
    )
    files = sorted(map(str, tmp_path.glob("*.yaml")))
    done = subprocess.run(
        [sys.executable, "-c", program, *files],
        preexec_fn=_limit,
        capture_output=True,
        text=True,
        timeout=3 * SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


PIECES = st.sampled_from(
    [
        *("serve:", "env:", "- ", "? ", ": ", "{", "}", "[", "]", ",", "\n", "\n  ", "  ", "#"),
        *("&a ", "*a", "<<: ", "!!int ", "!x ", "!!float ", "!!binary ", "| ", "> ", "'", '"'),
        *("0x", "1e999999", "1.0e+999999", ".nan", "-.inf", "1:59:59", "2020-01-01", "~", "null"),
        *("title", "model: ", "path: ", "extends: ", "v2", "schema: 1", "name: a", "\t", "\r"),
        *("\ufeff", "\u2028", "\x85", "\x1b[2J", "\0", "---\n", "...\n", "%YAML 1.1\n", "off"),
        *("extra_args: ", "chat_template: ", "allow_unsafe: true", "image: ", "limits: ", "=", "é"),
    ]
)
TEXTS = st.one_of(
    st.lists(PIECES, max_size=12).map("".join).map(str.encode),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text(max_size=40).map(lambda text: text.encode("utf-16", "surrogatepass")),
    st.binary(max_size=60),
)


@settings(max_examples=examples(300))
@given(st.sampled_from([b"", HEAD.encode(), b"\xef\xbb\xbf" + HEAD.encode()]), TEXTS)
def test_any_text_is_a_recipe_or_a_mistake(
    tmp_path_factory: pytest.TempPathFactory, head: bytes, text: bytes
) -> None:
    folder = tmp_path_factory.getbasetemp() / "texts"
    folder.mkdir(exist_ok=True)
    outcome(head + text, folder)


VALUES: st.SearchStrategy[Any] = st.text(max_size=30) | st.lists(PIECES, max_size=8).map("".join)


@settings(max_examples=examples(200))
@given(st.sampled_from(["title", "serve.env.A", "model.path", "serve.port", "..", ""]), VALUES)
def test_any_typed_value_is_taken_or_a_mistake(path: str, value: str) -> None:
    try:
        load_recipe(SHIPPED, "v2", [f"{path}={value}"])
    except RecipeError:
        return


def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, "/dev/zero", "/dev/null"):
        result = CliRunner().invoke(program(COMMANDS), ["show", str(path)])
        assert isinstance(result.exception, RecipeError)
        assert "not a regular file" in result.exception.message


def test_a_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as stream:
        stream.truncate(10 * 2**30)
    with pytest.raises(RecipeError, match="larger than 256 KiB"):
        yaml_text.read_text(path)
    path.write_bytes(b" " * (256 << 10))
    assert len(yaml_text.read_text(path)) == 256 << 10


def test_aliases_that_stand_for_little_are_fine() -> None:
    text = "a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}\n"
    marked = yaml_text.load_mapping(text, "here")
    assert marked.content["b"] == [{"x": 1}, {"x": 1}]
    assert marked.content["c"] == {"x": 1, "y": 2}
    assert marked.lines["c", "x"] == 1


LEAVES = st.none() | st.booleans() | st.integers(-9999, 9999) | st.text(max_size=8)
TREES = st.recursive(
    LEAVES,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below),
    max_leaves=8,
)


@given(TREES)
def test_what_is_written_reads_back(tree: Any) -> None:
    assert yaml_text.load(yaml_text.dump(tree), "here") == tree


@pytest.mark.parametrize(
    "text",
    [
        "? !!str {=: serve}\n: {trust_remote_code: true}\n",
        *("serve:\n  ? !!str [env]\n  : {A: b}\n", "serve: {env: {!!str {=: X}: y}}\n"),
        *("? {a: b}\n: c\n", "? [a]\n: c\n"),
    ],
)
def test_a_key_is_a_word(text: str) -> None:
    with pytest.raises(RecipeError):
        yaml_text.load_mapping(text, "lab")


def test_a_key_may_override_what_a_merge_brought() -> None:
    text = "serve:\n  <<: {port: 1, name: a}\n  port: 2\n"
    marked = yaml_text.load_mapping(text, "lab")
    assert marked.content == {"serve": {"port": 2, "name": "a"}}
    assert marked.duplicates == ()
    assert marked.lines["serve", "port"] == 3
    twice = yaml_text.load_mapping("a: {<<: {b: 1}, b: 2, b: 3}\n", "lab")
    assert twice.duplicates == ((("a", "b"), 1),)


@pytest.mark.parametrize(
    "text",
    [
        *("null", "123", "true", "1.5", "2024-01-01", "~", "", "=", "1e3", "- x", "a,b]", " lead"),
        *("v2 # x", "./we ird: #y.yaml", "a\nb", "\x85x", "\u2028", "\U0001f4c1m", "x y " * 200),
    ],
)
def test_any_text_stands_on_one_line_and_is_read_as_itself(text: str) -> None:
    written = yaml_text.in_line(text)
    assert "\n" not in written
    assert yaml_text.load(f"a: {written} # b\nc: {{d: {written}, e: 1}}", "lab") == {
        "a": text,
        "c": {"d": text, "e": 1},
    }


@pytest.mark.parametrize(
    ("written", "most", "said"),
    [
        (lambda count: f"a: &a 1\nb: [{', '.join(['*a'] * count)}]", 64, "more than 64 aliases"),
        (lambda count: "[" * count + "]" * count, 32, "deeper than 32 levels"),
        (lambda count: f"[{', '.join(['1'] * (count - 1))}]", 5_000, "more than 5000 values"),
        (lambda count: "1" * count, 40, "a number of 41 characters"),
        (lambda count: "a: 1\n#" + "x" * (count - 6), 256 << 10, "larger than 256 KiB"),
    ],
)
def test_so_much_is_read_and_no_more(written: Callable[[int], str], most: int, said: str) -> None:
    yaml_text.load(written(most), "their.yaml")
    with pytest.raises(RecipeError) as caught:
        yaml_text.load(written(most + 1), "their.yaml")
    assert said in str(caught.value.detail)
