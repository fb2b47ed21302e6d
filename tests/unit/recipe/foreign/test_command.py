"""Others' commands: filled in as their tools do, and taken apart as a shell would."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.errors import RecipeError
from sparkdeploy.recipe.foreign.command import fill_in, take_apart
from tests.examples import examples
from tests.unit.recipe.foreign.samples import CASES


@pytest.mark.parametrize(("template", "filled"), CASES["filled"])
def test_a_template_is_filled_in_as_its_tool_does(template: str, filled: str) -> None:
    values = {"model": "a/b", "count": "2", "nested": "at {model}"}
    assert fill_in(template, values) == filled


def test_a_parameter_without_a_value_is_named() -> None:
    with pytest.raises(RecipeError, match=r"\{port\}, \{host\} stands in it") as refused:
        fill_in("serve {port} {host} {port}", {})
    assert refused.value.hint == "--set port=... --set host=..."


@pytest.mark.parametrize(("text", "arguments"), CASES["arguments"])
def test_what_follows_vllm_is_found(text: str, arguments: str) -> None:
    assert list(take_apart(text).arguments) == shlex.split(arguments)


def test_what_a_shell_is_given_is_taken_apart_as_well() -> None:
    found = take_apart("A=1 exec bash -lc 'cd \"/a b\" && B=2 vllm serve a/b >log'")
    assert (found.env, found.arguments) == ((("A", "1"), ("B", "2")), ("a/b",))
    assert found.others == ("cd '/a b'", "> log")


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
