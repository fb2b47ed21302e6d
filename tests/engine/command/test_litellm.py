"""The real LiteLLM, of the image's release, started by our words in front of two servers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.error import HTTPError

import pytest

from sparkdeploy.deploy.serving import ServedDeployment
from sparkdeploy.export.neighbours import litellm_export, write_export
from sparkdeploy.recipe.answers import EMBEDDINGS
from sparkdeploy.settings import load_settings
from tests.engine.conftest import free_port
from tests.engine.neighbours import litellm, post

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.runs("export")]

HOSTS = load_settings({}).hosts
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
MASTER_KEY, KEY = "sk-of-the-gateway", "key of main"


class Model(ThreadingHTTPServer):
    """An OpenAI-style server that says its name, and notes what it was asked and with which key."""

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", free_port()), _Answer)
        self.name = name
        self.asked: list[tuple[str, str, str]] = []

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Answer(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Authorization", "")
        self.server.asked.append((self.path, body["model"], key))
        message = {"role": "assistant", "content": f"I am {self.server.name}"}
        chat = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        embedding = {"data": [{"index": 0, "object": "embedding", "embedding": [0.5]}]}
        told = embedding if self.path.endswith("embeddings") else chat
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        text = json.dumps({"id": "1", "model": body["model"], "usage": usage, **told}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def models() -> Iterator[tuple[Model, Model]]:
    with Model("big") as big, Model("small") as small:
        threads = [threading.Thread(target=it.serve_forever) for it in (big, small)]
        for thread in threads:
            thread.start()
        yield big, small
        for server, thread in zip((big, small), threads, strict=True):
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def gateway(models: tuple[Model, Model], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """LiteLLM before both, one of them with a key."""
    folder, (big, small) = tmp_path_factory.mktemp("gateway"), models
    keys = folder / "keys"
    keys.mkdir()
    (keys / "main").write_text(f"{KEY}\n")
    (keys / ".gateway").write_text(f"{MASTER_KEY}\n")
    port = free_port()
    served = (
        ServedDeployment("main", "v2", big.port, ("qwen", "alias"), keys / "main", 4096),
        ServedDeployment("small", "x", small.port, ("org/embed",), answers=EMBEDDINGS),
    )
    key_file = keys / ".gateway"
    made = litellm_export(served, port, HOSTS, user="0:0", key_file=key_file)
    write_export(made, folder)
    with litellm(folder, port) as url:
        yield url


def test_each_name_reaches_its_own_model_with_its_own_key(
    gateway: str, models: tuple[Model, Model]
) -> None:
    big, small = models
    for name in ("qwen", "alias"):
        answer = post(f"{gateway}{CHAT}", MASTER_KEY, model=name, messages=HELLO)
        assert answer["choices"][0]["message"]["content"] == "I am big"
        assert big.asked[-1] == (CHAT, name, f"Bearer {KEY}")
    told = post(f"{gateway}/v1/embeddings", MASTER_KEY, model="org/embed", input=["x"])
    assert told["data"][0]["embedding"]
    path, name, key = small.asked[-1]
    assert (path, name) == ("/v1/embeddings", "org/embed")
    assert KEY not in key
    assert MASTER_KEY not in key


@pytest.mark.parametrize("key", ["", "wrong", "sk-wrong", KEY])
def test_who_has_not_its_key_reaches_nothing(
    gateway: str, models: tuple[Model, Model], key: str
) -> None:
    before = [len(model.asked) for model in models]
    assert refusal_of(gateway, key, "qwen") in {400, 401, 403}
    assert [len(model.asked) for model in models] == before


def test_a_name_that_no_deployment_has_reaches_nothing(
    gateway: str, models: tuple[Model, Model]
) -> None:
    before = [len(model.asked) for model in models]
    assert refusal_of(gateway, MASTER_KEY, "gpt-5") in {400, 404}
    assert [len(model.asked) for model in models] == before


def refusal_of(gateway: str, key: str, model: str) -> int:
    """Return the status that a request is refused with."""
    with pytest.raises(HTTPError) as refused:
        post(f"{gateway}{CHAT}", key, model=model, messages=HELLO)
    with refused.value:
        return refused.value.code
