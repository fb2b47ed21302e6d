"""Who passes the key middleware."""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sparkdeploy_vllm.key_middleware import RequireKey

from tests.examples import examples
from tests.unit.vllm_plugin import asking
from tests.unit.vllm_plugin.asking import Headers, Message

GOOD: Headers = [(b"authorization", b"Bearer sk-right")]


def ask(path: str, headers: Headers, kind: str = "http", method: str = "GET") -> list[Message]:
    """What a client sees sent for one request."""
    app = RequireKey(asking.toy_app, env={"VLLM_API_KEY": "sk-right"})
    return asking.ask(app, path, headers, kind=kind, method=method)


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


ORIGIN = (b"origin", b"https://chat.example")
METHOD = (b"access-control-request-method", b"POST")
WANTED = (b"access-control-request-headers", b"authorization, content-type")
PREFLIGHT: Headers = [(b"host", b"spark:8000"), ORIGIN, METHOD, WANTED]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/metrics", "/invocations", "/no/such"])
def test_a_browsers_preflight_is_asked_about_health_only(path: str) -> None:
    (answer,) = ask(
        path, [*PREFLIGHT, (b"cookie", b"a=b"), (b"content-length", b"0")], "http", "OPTIONS"
    )
    seen = answer["scope"]
    assert (seen["path"], seen["raw_path"], seen["query_string"]) == ("/health", b"/health", b"")
    assert seen["method"] == "OPTIONS"
    assert seen["headers"] == [ORIGIN, METHOD, WANTED]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [ORIGIN],
        [METHOD],
        [WANTED],
        [ORIGIN, WANTED],
        [METHOD, WANTED],
        [ORIGIN, ORIGIN, METHOD],
        [ORIGIN, (b"Origin", b"https://other.example"), METHOD],
        [ORIGIN, METHOD, METHOD],
        [ORIGIN, METHOD, (b"Access-Control-Request-Method", b"GET")],
        [(b"x-origin", b"a"), METHOD],
        [(b"origin ", b"a"), METHOD],
        [ORIGIN, (b"access_control_request_method", b"POST")],
        [*PREFLIGHT, (b"content-length", b"1")],
        [*PREFLIGHT, (b"content-length", b"00")],
        [*PREFLIGHT, (b"content-length", b"0"), (b"content-length", b"0")],
        [*PREFLIGHT, (b"transfer-encoding", b"chunked")],
        [*PREFLIGHT, (b"Transfer-Encoding", b"identity")],
    ],
)
def test_what_is_only_like_a_preflight_needs_the_key(headers: Headers) -> None:
    assert ask("/v1/models", headers, "http", "OPTIONS")[0]["status"] == 401


NAMES = st.sampled_from(
    [
        *(b"origin", b"Origin", METHOD[0], METHOD[0].upper(), b"content-length"),
        *(b"transfer-encoding", b"authorization", b"x-forwarded-uri", b"host", WANTED[0]),
    ]
)
VALUES = st.one_of(st.sampled_from([b"", b"0", b"POST", b"Bearer sk-wrong"]), st.binary(max_size=9))


@settings(max_examples=examples(400))
@given(
    kind=st.sampled_from(["http", "websocket"]),
    method=st.one_of(st.sampled_from(["OPTIONS", "GET", "POST"]), st.text(max_size=8)),
    path=st.one_of(st.sampled_from(["/v1/models", "/health", "/metrics"]), st.text(max_size=20)),
    headers=st.lists(st.tuples(NAMES, VALUES), max_size=6),
)
@example("http", "OPTIONS", "/metrics", PREFLIGHT)
@example("websocket", "OPTIONS", "/v1/realtime", PREFLIGHT)
def test_without_the_key_nothing_but_health_is_ever_reached(
    kind: str, method: str, path: str, headers: Headers
) -> None:
    first = ask(path, headers, kind, method)[0]
    if passed([first]):
        assert kind == "http"
        assert first["scope"]["path"] == "/health"
        assert method == "OPTIONS" or path == "/health"


@pytest.mark.parametrize("env", [{}, {"VLLM_API_KEY": ""}])
def test_without_a_key_it_refuses_to_start(env: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="VLLM_API_KEY"):
        RequireKey(asking.toy_app, env=env)
