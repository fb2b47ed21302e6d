"""What of a client's chat_template_kwargs reaches vLLM."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkdeploy_vllm.key_middleware import RequireKey
from sparkdeploy_vllm.template_arguments import TOKENIZER_PARAMETERS, DropTokenizerArguments

from tests.examples import examples
from tests.unit.vllm_plugin.asking import ask, toy_app

JSON = (b"content-type", b"application/json")
HOSTILE = {"tokenize": True, "padding": "max_length", "max_length": 10**9, "truncation": True}
MORE = {"return_tensors": "pt", "return_dict": True, "pad_to_multiple_of": 10**9, "stride": 1}
TEMPLATES = {"enable_thinking": False, "documents": [], "add_generation_prompt": True, "text": "t"}
ROUTES = [
    *("/v1/chat/completions", "/v1/chat/completions/batch", "/tokenize", "/v1/responses"),
    *("/v1/messages", "/v1/messages/count_tokens", "/pooling", "/v1/embeddings", "/classify"),
    *("/rerank", "/score", "/invocations", "/a/route/of/a/later/vllm"),
]


def reached(body: bytes | dict[str, Any], path: str = ROUTES[0]) -> Any:
    """Return the JSON that vLLM reads of a request."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    (answer,) = ask(DropTokenizerArguments(toy_app), path, [JSON], pieces=[sent])
    return json.loads(answer["body"])


@pytest.mark.parametrize("path", ROUTES)
def test_the_tokenizers_parameters_are_dropped_and_the_templates_stay(path: str) -> None:
    body = {"messages": ["x"], "chat_template_kwargs": {**HOSTILE, **MORE, **TEMPLATES}}
    assert reached(body, path) == {"messages": ["x"], "chat_template_kwargs": TEMPLATES}


@pytest.mark.parametrize(
    "spelt",
    [
        rb'{"chat\u005ftemplate\u005Fkwargs": {"padding": 1, "a": 2}}',
        rb'{"chat_template_kwargs": {"p\u0061dding": 1, "a": 2}}',
        rb'{"\u0063hat_template_kwargs": {"padding": 1, "a": 2}}',
        '{"chat_template_kwargs": {"padding": 1, "a": 2}}'.encode("utf-16"),
        '{"chat_template_kwargs": {"padding": 1, "a": 2}}'.encode("utf-32-be"),
        b'{"chat_template_kwargs": 1, "chat_template_kwargs": {"padding": 1, "a": 2}}',
    ],
)
def test_however_it_is_spelt(spelt: bytes) -> None:
    assert reached(spelt) == {"chat_template_kwargs": {"a": 2}}


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":  "as it was", "chat_template_kwargs": {"enable_thinking": false} }',
        *(rb'{"messages": "\u0063 and \u00fc"}', b"[1, 2]", b"", b"no JSON"),
    ],
)
def test_what_names_none_is_passed_on_as_it_came(body: bytes) -> None:
    (answer,) = ask(DropTokenizerArguments(toy_app), headers=[JSON], pieces=[body[:3], body[3:]])
    assert answer["body"] == body


@pytest.mark.parametrize(
    "body",
    [
        b'{"chat_template_kwargs": ' + b"[" * 200_000,
        b'{"chat_template_kwargs": {"padding": 1}',
        b'{"chat_template_kwargs": {"padding": ' + b"1" * 5000 + b"}}",
        b'{"chat_template_kwargs": "\xff"}',
    ],
)
def test_what_names_them_and_cannot_be_read_is_refused(body: bytes) -> None:
    for headers in ([JSON], [], [(b"content-type", b"text/plain"), JSON]):
        assert (
            ask(DropTokenizerArguments(toy_app), headers=headers, pieces=[body])[0]["status"] == 400
        )


def test_no_body_is_read_of_a_client_without_the_key() -> None:
    app = RequireKey(toy_app, env={"VLLM_API_KEY": "sk-right"})
    # Nothing can be taken from no pieces: reading would fail.
    assert ask(app, headers=[JSON], pieces=[])[0]["status"] == 401


NAMES = st.sampled_from([*sorted(TOKENIZER_PARAMETERS), "enable_thinking", "chat_template_kwargs"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


def fields(content: object) -> list[Any]:
    """Return the value of every chat_template_kwargs, at any depth."""
    if isinstance(content, list):
        return [found for item in content for found in fields(item)]
    if not isinstance(content, dict):
        return []
    deeper = [found for item in content.values() for found in fields(item)]
    return [*deeper, content.get("chat_template_kwargs")]


@settings(max_examples=examples(300))
@given(st.dictionaries(NAMES, VALUES, max_size=5), st.booleans())
def test_no_parameter_of_the_tokenizer_is_ever_left(
    content: dict[str, Any], is_ascii: bool
) -> None:
    cleaned = reached(json.dumps(content, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass"))
    for arguments in fields(cleaned):
        assert not isinstance(arguments, dict) or not TOKENIZER_PARAMETERS & arguments.keys()
