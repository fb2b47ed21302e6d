"""The real LiteLLM, of the image's release, started by our words in front of two servers."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.error import HTTPError

import pytest

from sparkdeploy.deploy.serving import ServedDeployment
from sparkdeploy.export.neighbours import litellm_export, write_export
from sparkdeploy.recipe.answers import EMBEDDINGS
from sparkdeploy.settings import load_settings
from tests.engine.conftest import free_port
from tests.engine.neighbours import litellm, post
from tests.fakes.http_server import TableServer, serving

pytestmark = [pytest.mark.slow, pytest.mark.runs("export")]

HOSTS = load_settings({}).hosts
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
MASTER_KEY, KEY = "sk-of-the-gateway", "key of main"


@pytest.fixture(scope="module")
def models() -> Iterator[tuple[TableServer, TableServer]]:
    """Two OpenAI-style servers that say their names, and note what they were asked."""
    with serving(TableServer()) as big, serving(TableServer()) as small:
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        told = {"id": "1", "model": "x", "usage": usage}
        for name, server in (("big", big), ("small", small)):
            message = {"role": "assistant", "content": f"I am {name}"}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            data = [{"index": 0, "object": "embedding", "embedding": [0.5]}]
            server.answers[CHAT] = (200, {**told, "choices": choices})
            server.answers["/v1/embeddings"] = (200, {**told, "data": data})
        yield big, small


@pytest.fixture(scope="module")
def gateway(
    models: tuple[TableServer, TableServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
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
    gateway: str, models: tuple[TableServer, TableServer]
) -> None:
    big, small = models
    for name in ("qwen", "alias"):
        answer = post(f"{gateway}{CHAT}", MASTER_KEY, model=name, messages=HELLO)
        assert answer["choices"][0]["message"]["content"] == "I am big"
        path, key, body = big.asked[-1]
        assert (path, key, body["model"]) == (CHAT, f"Bearer {KEY}", name)
    told = post(f"{gateway}/v1/embeddings", MASTER_KEY, model="org/embed", input=["x"])
    assert told["data"][0]["embedding"]
    path, key, body = small.asked[-1]
    assert (path, body["model"]) == ("/v1/embeddings", "org/embed")
    assert KEY not in (key or "")
    assert MASTER_KEY not in (key or "")


@pytest.mark.parametrize("key", ["", "wrong", "sk-wrong", KEY])
def test_who_has_not_its_key_reaches_nothing(
    gateway: str, models: tuple[TableServer, TableServer], key: str
) -> None:
    before = [len(model.asked) for model in models]
    assert refusal_of(gateway, key, "qwen") in {400, 401, 403}
    assert [len(model.asked) for model in models] == before


def test_a_name_that_no_deployment_has_reaches_nothing(
    gateway: str, models: tuple[TableServer, TableServer]
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
