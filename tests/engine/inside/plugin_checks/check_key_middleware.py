"""The key middleware around vLLM's real server: which requests get through, and how far."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any
from unittest import mock

import httpx
from sparkdeploy_vllm.key_middleware import RequireKey
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

KEY = "sk-right"
MIDDLEWARE = ("--middleware", f"{RequireKey.__module__}.{RequireKey.__name__}")
ORIGIN = ("origin", "https://chat.example")
ALLOWED = ("--allowed-origins", '["https://chat.example"]')
METHOD = ("access-control-request-method", "POST")
WANTED = ("access-control-request-headers", "authorization,content-type")
PREFLIGHT = (ORIGIN, METHOD, WANTED)
PATHS = ("/v1/chat/completions", "/v1/models", "/invocations", "/tokenize", "/metrics", "/docs")


def _build_app(*options: str) -> Any:
    """VLLM's own server with the middleware as `--public` adds it."""
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(["--model", "none", *MIDDLEWARE, *options])
    with mock.patch.dict(os.environ, VLLM_API_KEY=KEY):
        app = build_app(args, ("generate",))
        app.middleware_stack = app.build_middleware_stack()
    return app


def _ask(
    app: Any, method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes = b""
) -> httpx.Response:
    async def exchange() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://spark") as client:
            return await client.request(method, path, headers=list(headers), content=body)

    return asyncio.run(exchange())


def check_it_is_the_outermost_layer_and_cors_the_innermost() -> None:
    names = [layer.cls.__name__ for layer in _build_app().user_middleware]
    assert names[0] == "RequireKey", names
    assert names.index("CORSMiddleware") > names.index("AuthenticationMiddleware"), names


def check_a_browsers_preflight_is_answered_on_every_path() -> None:
    app = _build_app(*ALLOWED)
    for path in (*PATHS, "/no/such"):
        answer = _ask(app, "OPTIONS", path, PREFLIGHT)
        assert answer.status_code == 200, (path, answer.text)
        assert answer.headers["access-control-allow-origin"] == ORIGIN[1]
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-headers"] == WANTED[1]


def check_without_an_allowed_origin_no_page_is_let_in() -> None:
    refused = _ask(_build_app(), "OPTIONS", "/v1/models", PREFLIGHT)
    assert refused.status_code == 400, refused.text


def check_a_page_with_the_key_can_read_the_answer() -> None:
    app = _build_app(*ALLOWED)
    # A path that no route has: the engine that the others would ask is not running.
    answer = _ask(app, "GET", "/no/such", [ORIGIN, ("authorization", f"Bearer {KEY}")])
    assert answer.status_code == 404
    assert answer.headers["access-control-allow-origin"] == ORIGIN[1]
