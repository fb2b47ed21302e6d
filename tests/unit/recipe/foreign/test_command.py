"""Others' commands: filled in as their tools do, and taken apart as a shell would."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.foreign.command import fill_in, take_apart
from tests.examples import examples


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("serve {model} -x", "serve a/b -x"),
        ("'{\"a\":1}' {model}", "'{\"a\":1}' a/b"),
        ('\'{{"a":{{"b":1}}}}\' {model}', '\'{"a":{"b":1}}\' a/b'),
        ('\'{{"method":"mtp","n":{count}}}\'', '\'{"method":"mtp","n":2}\''),
        ("{nested}", "at a/b"),
        ("${HOME} {model}", "${HOME} a/b"),
        ("a \\\n  b \\  \n c", "a    b   c"),
    ],
)
def test_a_template_is_filled_in_as_its_tool_does(template: str, filled: str) -> None:
    values = {"model": "a/b", "count": "2", "nested": "at {model}"}
    assert fill_in(template, values) == filled


def test_a_parameter_without_a_value_is_named() -> None:
    with pytest.raises(RecipeError, match=r"\{port\}, \{host\} stands in it") as refused:
        fill_in("serve {port} {host} {port}", {})
    assert refused.value.hint == "--set port=... --set host=..."


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("vllm serve a/b --port 1", "a/b --port 1"),
        ("/opt/venv/bin/vllm serve a/b", "a/b"),
        ("python3 -m vllm.entrypoints.openai.api_server --model a/b", "--model a/b"),
        ("bash -c 'exec vllm serve a/b'", "a/b"),
        ("vllm serve a/b 2>&1 | tee log", "a/b"),
        ("env A=1 vllm serve a/b  # hi; there", "a/b"),
        ("vllm serve a/b --x '#1;2' &", "a/b --x '#1;2'"),
        ("vllm serve a/b --x '' --y;\n", "a/b --x '' --y"),
        ("vllm serve a/b#1 # don't", "a/b#1"),
        ("vllm serve a/b --x \\ #1 2>log --y 2", "a/b --x ' #1' --y 2"),
    ],
)
def test_what_follows_vllm_is_found(text: str, arguments: str) -> None:
    assert list(take_apart(text).arguments) == shlex.split(arguments)


@pytest.mark.parametrize("text", ["", "sglang serve x", "vllm bench serve", "echo 'vllm serve x'"])
def test_a_command_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="does not start `vllm serve`"):
        take_apart(text)


def test_a_quote_without_an_end_is_a_mistake() -> None:
    with pytest.raises(RecipeError, match="a quote has no end"):
        take_apart("vllm serve 'a")


@given(st.text())
@settings(max_examples=examples(200))
def test_any_text_is_a_command_or_a_mistake(text: str) -> None:
    try:
        found = take_apart(text)
    except RecipeError:
        return
    assert "serve" in text or "vllm" in text
    assert isinstance(found.arguments, tuple)
