"""Clients of others through the gateway, streaming and not: OpenAI's, Anthropic's, llm, LiteLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from sparkdeploy.deploy.serving import ServedDeployment
from sparkdeploy.export.neighbours import litellm_export, write_export
from sparkdeploy.gateway import proxy
from sparkdeploy.gateway.deployments import Upstream
from sparkdeploy.gateway.stack import ModelEntry
from sparkdeploy.settings import load_settings
from tests.engine.conftest import free_port
from tests.engine.neighbours import litellm, post
from tests.fakes.gateway import ModelHandler, ScriptedDeployments, gateway, keys_in, stack_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.runs()]

KEY = "k" * 32
CLIENT = """
import json, sys
import anthropic, openai

url, key, unknown = sys.argv[1:]
said = {}
chat = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
messages = [{"role": "user", "content": "Hello"}]
said["models"] = sorted(it.id for it in chat.models.list())
asked = chat.chat.completions.create(model="a", messages=messages)
said["openai"] = asked.choices[0].message.content
pieces = chat.chat.completions.create(model="b", messages=messages, stream=True)
said["openai stream"] = "".join(it.choices[0].delta.content or "" for it in pieces)
try:
    chat.chat.completions.create(model=unknown, messages=messages)
except openai.NotFoundError as error:
    said["openai unknown"] = error.code
try:
    pieces = chat.chat.completions.create(
        model="a", messages=messages, stream=True, extra_body={"die": True}
    )
    said["openai death"] = "".join(it.choices[0].delta.content or "" for it in pieces)
except openai.APIError as error:
    said["openai death"] = error.message
try:
    openai.OpenAI(base_url=f"{url}/v1", api_key="no", max_retries=0).models.list()
except openai.AuthenticationError as error:
    said["openai key"] = error.code
claude = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
asked = claude.messages.create(model="a", max_tokens=9, messages=messages)
said["anthropic"] = asked.content[0].text
with claude.messages.stream(model="b", max_tokens=9, messages=messages) as pieces:
    said["anthropic stream"] = "".join(pieces.text_stream)
try:
    claude.messages.create(model=unknown, max_tokens=9, messages=messages)
except anthropic.NotFoundError as error:
    said["anthropic unknown"] = error.body["error"]["type"]
try:
    anthropic.Anthropic(base_url=url, api_key="no", max_retries=0).messages.create(
        model="a", max_tokens=9, messages=messages
    )
except anthropic.AuthenticationError as error:
    said["anthropic key"] = error.body["error"]["type"]
print(json.dumps(said))
"""


class SlowDeployments(ScriptedDeployments):
    """So slow to start that whoever waits for a stream reads comments first."""

    def start(self, model: ModelEntry) -> Upstream:
        time.sleep(0.5)
        return super().start(model)


class SpeakingHandler(ModelHandler):
    """Says the model's name in the shape of the route."""

    def post(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_claude = self.path == "/v1/messages"
        events = self._anthropic() if is_claude else self._openai()
        if not body.get("stream"):
            self.send(200, self._whole(is_claude=is_claude))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events[: 1 if body.get("die") else None]:
            name = f"event: {event['type']}\n" if is_claude else ""
            self._chunk(f"{name}data: {json.dumps(event)}\n\n".encode())
        if body.get("die"):
            self.close_connection = True
            return
        if not is_claude:
            self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _whole(self, *, is_claude: bool) -> dict[str, Any]:
        name = self.server.name
        if is_claude:
            return {**_message(), "content": [{"type": "text", "text": name}]}
        message = {"role": "assistant", "content": name}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return {"id": "1", "object": "chat.completion", "created": 0, "model": name,
                "choices": [choice], "usage": usage}  # fmt: skip

    def _openai(self) -> list[dict[str, Any]]:
        base = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "x"}
        deltas = [{"role": "assistant", "content": self.server.name}, {"content": "!"}]
        return [{**base, "choices": [{"index": 0, "delta": it}]} for it in deltas]

    def _anthropic(self) -> list[dict[str, Any]]:
        delta = {"type": "text_delta", "text": self.server.name}
        return [
            {"type": "message_start", "message": _message()},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "text", "text": ""},
            },
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"output_tokens": 1},
            },
            {"type": "message_stop"},
        ]


def _message() -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {"id": "m", "type": "message", "role": "assistant", "model": "x", "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": usage}  # fmt: skip


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A gateway with a key, whose waiting streams get comments soon."""
    monkeypatch.setattr(proxy, "COMMENT_AFTER_S", 0.01)
    monkeypatch.setattr(proxy, "COMMENT_EVERY_S", 0.1)
    keys = keys_in(tmp_path, KEY)
    with gateway(stack_of(keys_file=keys), SlowDeployments(SpeakingHandler)) as client:
        yield str(client.base_url).rstrip("/")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that has the clients."""
    venv = tmp_path_factory.mktemp("clients") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    packages = ("openai", "anthropic", "llm")
    subprocess.run([venv / "bin/pip", "install", "--quiet", *packages], check=True)
    return venv / "bin"


def test_their_own_clients_are_answered(address: str, programs: Path) -> None:
    done = subprocess.run(
        [programs / "python", "-c", CLIENT, address, KEY, "nobody"],
        check=True,
        capture_output=True,
        text=True,
    )
    said = json.loads(done.stdout)
    assert "ended in the middle" in said.pop("openai death")
    assert said == {
        "models": ["a", "a-cold", "b", "c"],
        "openai": "a",
        "openai stream": "b!",
        "openai unknown": "model_not_found",
        "openai key": "invalid_api_key",
        "anthropic": "a",
        "anthropic stream": "b",
        "anthropic unknown": "not_found_error",
        "anthropic key": "authentication_error",
    }


def test_llm_is_answered(address: str, programs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "llm"
    folder.mkdir()
    mine = {"api_base": f"{address}/v1", "api_key_name": "spark"}
    known = [{**mine, "model_id": f"my-{it}", "model_name": it} for it in "ab"]
    (folder / "extra-openai-models.yaml").write_text(json.dumps(known))
    (folder / "keys.json").write_text(json.dumps({"spark": KEY}))
    for model, options, said in (("my-a", [], "a!"), ("my-b", ["--no-stream"], "b")):
        done = subprocess.run(
            [programs / "llm", "-m", model, *options, "Hello"],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"LLM_USER_PATH": str(folder), "PATH": os.environ["PATH"]},
        )
        assert done.stdout.strip() == said


def test_litellm_is_answered_and_answers(address: str, tmp_path: Path) -> None:
    folder, port = tmp_path / "litellm", free_port()
    folder.mkdir()
    (folder / "key").write_text("sk-of-litellm")
    behind = ServedDeployment(
        "gateway", "home", int(address.rpartition(":")[2]), ("a",), tmp_path / "keys.txt", 4096
    )
    hosts = load_settings({}).hosts
    made = litellm_export((behind,), port, hosts, user="0:0", key_file=folder / "key")
    write_export(made, folder)
    messages = [{"role": "user", "content": "Hello"}]
    with litellm(folder, port) as url:
        chat = f"{url}/v1/chat/completions"
        asked = post(chat, "sk-of-litellm", model="a", messages=messages)
        assert asked["choices"][0]["message"]["content"] == "a"
        body = {"model": "a", "messages": messages, "stream": True}
        header = {"Authorization": "Bearer sk-of-litellm"}
        with httpx2.stream("POST", chat, json=body, headers=header, timeout=60) as answer:
            events = [it.removeprefix("data: ") for it in answer.iter_lines() if it]
    assert events.pop() == "[DONE]"
    deltas = [choice["delta"] for it in events for choice in json.loads(it)["choices"]]
    assert "".join(it.get("content") or "" for it in deltas) == "a!"
