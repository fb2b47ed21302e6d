"""Which Host a server on loopback answers to."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkdeploy_vllm.host_middleware import RequireOwnHost

from tests.examples import examples
from tests.unit.vllm_plugin.asking import Headers, Message, ask, toy_app

OWN = [
    *("localhost", "localhost:8000", "LOCALHOST", "localhost.", "chat.localhost:8000"),
    *("127.0.0.1", "127.0.0.1:8000", "127.1.2.3:1", "[::1]", "[::1]:8000"),
    *("spark-7", "Spark-7:8000", "spark-7.lab.example", "chat.example", "other.example:443"),
]
FOREIGN = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("notlocalhost", "evil.example@localhost", "localhost@evil.example", "localhost/evil", ""),
    *("0.0.0.0", "10.0.0.1:8000", "[::2]", "[::1", "::1:8000:x", "localhost:8000:1", "2130706433"),
    *("localhost, evil.example", "localhost evil.example", "lab.example", ".localhost.x"),
]


def answered(headers: Headers, *, kind: str = "http", path: str = "/v1/models") -> Message:
    """Ask a server on spark-7.lab.example whose recipe allows two more names."""
    env = {"SPARKDEPLOY_ALLOWED_HOSTS": "chat.example, Other.Example"}
    app = RequireOwnHost(toy_app, env=env, hostname=lambda: "spark-7.lab.example")
    return ask(app, path, headers, kind=kind, method="GET")[0]


@pytest.mark.parametrize("host", OWN)
def test_its_own_names_and_those_of_the_recipe_pass(host: str) -> None:
    assert answered([(b"host", host.encode())])["type"] == "toy"


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics"])
@pytest.mark.parametrize("host", FOREIGN)
def test_a_name_that_a_page_had_lead_here_is_refused(host: str, path: str) -> None:
    headers = [(b"Host", host.encode()), (b"origin", b"http://evil.example:8000")]
    app = RequireOwnHost(toy_app, env={}, hostname=lambda: "spark-7.lab.example")
    start, body = ask(app, path, headers)
    assert start["status"] == 421
    assert "SPARKDEPLOY_ALLOWED_HOSTS" in json.loads(body["body"])["error"]["message"]


def test_two_hosts_are_refused_and_a_program_without_one_is_answered() -> None:
    assert answered([(b"host", b"localhost"), (b"host", b"localhost")])["status"] == 421
    assert answered([])["type"] == "toy"


def test_a_websocket_of_a_foreign_host_is_closed() -> None:
    assert answered([(b"host", b"evil.example")], kind="websocket")["type"] == "websocket.close"
    assert answered([], kind="lifespan")["type"] == "toy"


@settings(max_examples=examples(300))
@given(st.binary(max_size=30))
def test_whatever_a_host_is_it_is_answered_or_refused(host: bytes) -> None:
    answer = answered([(b"host", host)])
    assert answer["type"] == "toy" or answer["status"] == 421


def test_its_body_reaches_vllm_without_the_tokenizers_arguments() -> None:
    app = RequireOwnHost(toy_app, env={}, hostname=lambda: "spark")
    body = b'{"chat_template_kwargs": {"padding": "max_length", "thinking": true}}'
    (answer,) = ask(app, headers=[(b"host", b"localhost")], pieces=[body])
    assert json.loads(answer["body"]) == {"chat_template_kwargs": {"thinking": True}}
