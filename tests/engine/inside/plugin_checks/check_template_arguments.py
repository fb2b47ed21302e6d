"""The parameters of the real tokenizers, and the middleware of a loopback server."""

import asyncio
import inspect
import json
import os
from typing import Any
from unittest import mock

import httpx
from sparkdeploy_vllm.host_middleware import RequireOwnHost
from sparkdeploy_vllm.template_arguments import TOKENIZER_PARAMETERS, without_tokenizer_parameters
from transformers import PreTrainedTokenizerBase, ProcessorMixin
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

OF_THE_REQUEST = {"self", "conversation", "tools", "documents", "chat_template", "kwargs"}
"""VLLM refuses these of a client, or hands them to the template."""
OF_THE_TEMPLATE = {"add_generation_prompt", "continue_final_message"}
OPTIONS = ("--allowed-origins", "[]")
MIDDLEWARE = ("--middleware", f"{RequireOwnHost.__module__}.{RequireOwnHost.__name__}")


def check_every_parameter_of_the_tokenizers_template_call_is_dropped() -> None:
    for owner in (PreTrainedTokenizerBase, ProcessorMixin):
        names = set(inspect.signature(owner.apply_chat_template).parameters)
        left = names - OF_THE_REQUEST - OF_THE_TEMPLATE - TOKENIZER_PARAMETERS
        assert not left, (owner, left)


def check_what_is_left_is_json_for_vllm() -> None:
    body = {"chat_template_kwargs": {"padding": "max_length", "max_length": 10**9, "a": 1}}
    assert json.loads(without_tokenizer_parameters(json.dumps(body).encode())) == {
        "chat_template_kwargs": {"a": 1}
    }


def _asked(host: str) -> httpx.Response:
    """Ask vLLM's own server for a path without a route, by that name."""
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(["--model", "none", *OPTIONS, *MIDDLEWARE])
    assert args.allowed_origins == []
    with mock.patch.dict(os.environ):
        app = build_app(args, ("generate",))
        app.middleware_stack = app.build_middleware_stack()

    async def exchange() -> httpx.Response:
        transport: Any = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.get("/no/such", headers={"origin": "http://page.example"})

    return asyncio.run(exchange())


def check_a_rebound_name_is_refused_and_no_page_may_read() -> None:
    assert _asked("page.example:8000").status_code == 421
    answer = _asked("localhost:8000")
    assert answer.status_code == 404
    assert "access-control-allow-origin" not in answer.headers
