"""Who passes the key middleware."""

# mypy: disable-error-code="import-not-found"

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest
from sparkdeploy_vllm.key_middleware import RequireKey

Message = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]
GOOD: Headers = [(b"authorization", b"Bearer sk-right")]


async def _toy_app(scope: Message, receive: object, send: Callable[..., Awaitable[None]]) -> None:
    await send({"type": "toy", "path": scope.get("path")})


def ask(path: str, headers: Headers, kind: str = "http") -> list[Message]:
    """What a client sees sent for one request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    app = RequireKey(_toy_app, env={"VLLM_API_KEY": "sk-right"})
    asyncio.run(app({"type": kind, "path": path, "headers": headers}, receive, send))
    return sent


def passed(sent: list[Message]) -> bool:
    return bool(sent[0]["type"] == "toy")


@pytest.mark.parametrize("path", ["/v1/models", "/invocations", "/tokenize", "/metrics", "/docs"])
def test_every_path_answers_401_without_the_key(path: str) -> None:
    sent = ask(path, [])
    assert sent[0]["status"] == 401
    assert (b"www-authenticate", b"Bearer") in sent[0]["headers"]
    assert b"sk-right" not in sent[1]["body"]


@pytest.mark.parametrize("path", ["/v1/models", "/invocations"])
def test_the_right_key_opens_every_path(path: str) -> None:
    assert passed(ask(path, GOOD))


def test_health_needs_no_key() -> None:
    assert passed(ask("/health", []))


@pytest.mark.parametrize("path", ["/health/", "//health", "/Health", "/health/../v1/models", ""])
def test_nothing_that_only_looks_like_health_is_open(path: str) -> None:
    assert not passed(ask(path, []))


@pytest.mark.parametrize(
    "value",
    [b"Bearer sk-wrong", b"Bearer", b"Bearer ", b"", b"sk-right", b"Basic sk-right", b"\xff\xfe"],
)
def test_a_wrong_header_is_refused(value: bytes) -> None:
    assert not passed(ask("/v1/models", [(b"authorization", value)]))


def test_two_authorization_headers_are_refused() -> None:
    assert not passed(ask("/v1/models", GOOD + GOOD))


def test_header_name_and_scheme_are_case_insensitive() -> None:
    assert passed(ask("/v1/models", [(b"Authorization", b"bearer sk-right")]))


def test_a_websocket_needs_the_key_even_on_health() -> None:
    assert ask("/health", [], "websocket")[0]["type"] == "websocket.close"
    assert passed(ask("/v1/realtime", GOOD, "websocket"))


def test_lifespan_events_pass() -> None:
    assert passed(ask("", [], "lifespan"))


@pytest.mark.parametrize("env", [{}, {"VLLM_API_KEY": ""}])
def test_without_a_key_it_refuses_to_start(env: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="VLLM_API_KEY"):
        RequireKey(_toy_app, env=env)
