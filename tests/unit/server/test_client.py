"""The client, against a real HTTP server that says what the test wants."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sparkdeploy.errors import UnhealthyError
from sparkdeploy.recipe.answers import COMPLETIONS, TEXT, WITHOUT_TEXT, Task
from sparkdeploy.server.client import NoSuchRouteError, ServedModel
from tests.fakes.http_server import Handler, HttpServer, TableServer, serving

pytestmark = pytest.mark.outside

COMPLETION = {
    "choices": [{"text": " Paris", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2},
}
CHAT = {
    "choices": [{"message": {"content": None, "reasoning": "hm"}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 9, "completion_tokens": 3},
}


@pytest.fixture
def server() -> Iterator[TableServer]:
    made = TableServer()
    made.answers = {
        "/health": (200, ""),
        "/v1/models": (200, {"data": [{"id": "qwen"}]}),
        "/v1/completions": (200, COMPLETION),
        "/v1/chat/completions": (200, CHAT),
        "/metrics": (200, "vllm:generation_tokens_total 7\n"),
    }
    with serving(made):
        yield made


@pytest.fixture
def model(server: TableServer) -> Iterator[ServedModel]:
    with ServedModel(server.url, "secret") as served:
        yield served


def test_a_completion_is_greedy_and_carries_the_key(
    server: TableServer, model: ServedModel
) -> None:
    completion = model.complete("The capital", 2, extra={"seed": 1})
    assert (completion.text, completion.prompt_tokens, completion.completion_tokens) == (
        " Paris",
        5,
        2,
    )
    path, key, body = server.asked[-1]
    assert (path, key) == ("/v1/completions", "Bearer secret")
    assert body == {
        "model": "qwen",
        "prompt": "The capital",
        "max_tokens": 2,
        "temperature": 0.0,
        "seed": 1,
    }


def test_health_alone_is_asked_without_the_key_and_a_look_at_who_listens(
    server: TableServer, model: ServedModel
) -> None:
    looked: list[int] = []
    model.require_listener = lambda: looked.append(len(server.asked))
    assert model.is_healthy(timeout_s=10)
    with model.again() as again:
        again.exposition()
    assert [(path, key) for path, key, _ in server.asked] == [
        ("/health", None),
        ("/v1/models", "Bearer secret"),
        ("/metrics", "Bearer secret"),
    ]
    assert looked == [1, 2]


def test_no_redirect_is_followed(server: TableServer) -> None:
    class Moved(Handler):
        def post(self) -> None:
            self.body()
            self.send_response(307)
            self.send_header("Location", f"{server.url}/v1/completions")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with (
        serving(HttpServer(Moved)) as moved,
        ServedModel(moved.url, "secret", model="qwen") as model,
        pytest.raises(UnhealthyError, match=r"a redirect to http://127\.0\.0\.1"),
    ):
        model.ask("/v1/completions", {"prompt": "secret"})
    assert server.asked == []


def test_a_chat_answer_of_reasoning_alone_is_an_answer(model: ServedModel) -> None:
    completion = model.generate("/v1/chat/completions", {"messages": [], "max_tokens": 3})
    assert (completion.text, completion.reasoning) == ("", "hm")


def test_a_refusal_carries_the_servers_words(server: TableServer, model: ServedModel) -> None:
    server.answers["/v1/completions"] = (400, '{"error": "prompt is too long"}')
    with pytest.raises(UnhealthyError, match=r"400: .*prompt is too long"):
        model.complete("x", 1)


def test_a_missing_key_is_explained(server: TableServer, model: ServedModel) -> None:
    server.answers["/v1/models"] = (401, "Unauthorized")
    with pytest.raises(UnhealthyError) as caught:
        model.max_model_len()
    assert "API key" in (caught.value.hint or "")


def test_a_server_that_is_not_there_is_unhealthy_and_says_so(server: TableServer) -> None:
    server.server_close()
    with ServedModel(server.url) as model:
        assert not model.is_healthy()
        with pytest.raises(UnhealthyError, match="not reachable"):
            model.max_model_len()


@pytest.mark.parametrize("page", ["<html>It works!</html>", '["a list"]'])
def test_what_answers_in_another_way_is_no_model_server(
    server: TableServer, model: ServedModel, page: str
) -> None:
    server.answers["/v1/models"] = (200, page)
    with pytest.raises(UnhealthyError, match="did not answer with a JSON object"):
        model.max_model_len()
    server.answers["/v1/models"] = (200, json.dumps({"data": [{"id": "qwen"}]}))
    server.answers["/v1/completions"] = (200, page)
    with pytest.raises(UnhealthyError, match="did not answer with a JSON object"):
        model.complete("x", 1)


def test_a_proxy_of_the_environment_is_not_used(
    server: TableServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with ServedModel(server.url) as model:
        assert model.is_healthy()


NO_ROUTE = (404, '{"detail":"Not Found"}')


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/v1/embeddings", "input"),
        ("/score", "text_2"),
        ("/rerank", "documents"),
        ("/classify", "input"),
        ("/pooling", "input"),
    ],
)
def test_a_model_without_texts_is_asked_on_the_route_that_it_has(
    server: TableServer, model: ServedModel, path: str, key: str
) -> None:
    for endpoint in (COMPLETIONS, *(item.path for item in WITHOUT_TEXT)):
        server.answers[endpoint] = NO_ROUTE
    server.answers[path] = (200, json.dumps({"data": [], "usage": {"total_tokens": 7}}))
    with pytest.raises(NoSuchRouteError):
        model.complete("a", 1)
    answer = model.pool("Paris")
    assert (answer.path, answer.prompt_tokens) == (path, 7)
    asked, _, body = server.asked[-1]
    assert (asked, body[key]) == (path, ["Paris"])


@pytest.mark.parametrize(
    ("paths", "answered"),
    [
        ({"/v1/completions": {}, "/v1/chat/completions": {}}, "chat, completions"),
        ({"/score": {}, "/v1/embeddings": {}}, "embeddings, score"),
        ({"/rerank": {}, "/classify": {}, "/v1/rerank": {}}, "rerank, classify"),
        ({"/v1/audio/transcriptions": {}}, "transcriptions"),
        ({"/health": {}}, "chat, completions"),
        (None, "chat, completions"),
    ],
)
def test_the_routes_of_a_server_say_what_it_answers(
    server: TableServer, model: ServedModel, paths: dict[str, Any] | None, answered: str
) -> None:
    server.answers["/openapi.json"] = (200, json.dumps({"paths": paths}))
    assert model.answers(TEXT).describe() == answered


def test_a_model_that_hears_is_asked_with_a_recording(
    server: TableServer, model: ServedModel
) -> None:
    for task in WITHOUT_TEXT:
        server.answers[task.path] = NO_ROUTE
    server.answers[Task.TRANSCRIPTIONS.path] = (200, json.dumps({"text": ""}))
    assert model.pool("Paris").path == "/v1/audio/transcriptions"
    assert b'name="model"' in server.asked[-1][2]
    assert b"RIFF" in server.asked[-1][2]
