"""Captures, needles and tool calls against an HTTP server that answers as the test says."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdeploy.bench.endpoint import Access
from sparkdeploy.bench.files import shipped
from sparkdeploy.bench.quality import probes
from sparkdeploy.bench.quality.capture import first_texts, take_texts
from sparkdeploy.errors import BenchError
from sparkdeploy.server.client import ServedModel
from sparkdeploy.settings import load_settings
from tests.fakes.http_server import TableServer, serving
from tests.unit.program import Done

pytestmark = pytest.mark.outside

Answer = Callable[[dict[str, Any]], dict[str, Any]]
TOKENS_A_WORD = 2
MAX_MODEL_LEN = 4096


class AskingServer(TableServer):
    """Passes the body of every POST to `answer`."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        model = {"id": "qwen", "max_model_len": MAX_MODEL_LEN}
        self.answers["/v1/models"] = (200, {"data": [model]})
        for path in ("/v1/completions", "/v1/chat/completions"):
            self.answers[path] = lambda body: (200, answer(body))

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _path, _key, body in self.asked if body is not None]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], AskingServer]]:
    with contextlib.ExitStack() as running:
        yield lambda answer: running.enter_context(serving(AskingServer(answer)))


Serve = Callable[[Answer], AskingServer]


def told(logprob: float, rank: int) -> dict[str, object]:
    return {"logprob": logprob, "rank": rank, "decoded_token": "x"}


def completion(_body: dict[str, Any]) -> dict[str, Any]:
    """As vLLM 0.32 answered on a twin: nothing for the first token, then top and own."""
    choice = {
        "text": " on",
        "token_ids": [8, 9],
        "prompt_token_ids": [5, 6, 7],
        "prompt_logprobs": [
            None,
            {"6": told(-0.1, 1), "3": told(-2.5, 2)},
            {"7": told(-31.0, 443), "4": told(-0.01, 1)},
        ],
    }
    return {"choices": [choice], "usage": {}}


def test_a_capture_holds_what_the_server_told(serve: Serve) -> None:
    server = serve(completion)
    said: list[str] = []
    with ServedModel(server.url) as model:
        taken = take_texts(model, first_texts(2), tokens=2, say=said.append)
    assert [text.name for text in taken] == list(first_texts(2))
    first = taken[0]
    assert first.token_ids == (6, 7)
    assert [position.logprob for position in first.positions] == [-0.1, -31.0]
    assert [position.best for position in first.positions] == [6, 4]
    assert first.greedy_ids == (8, 9)
    assert server.bodies[1] == {
        "model": "qwen",
        "prompt": list(first_texts(2).values())[1],
        "max_tokens": 2,
        "temperature": 0.0,
        "prompt_logprobs": 20,
        "return_token_ids": True,
        "ignore_eos": True,
    }
    assert said == ["text 1 of 2", "text 2 of 2"]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"text": "x"}, "returns no log-probabilities of a prompt"),
        (
            {"prompt_token_ids": [5, 6], "prompt_logprobs": [None, {"7": told(-1.0, 1)}]},
            "unreadable about letter: token 6 has no log-probability",
        ),
        (
            {"prompt_token_ids": [5, 6], "prompt_logprobs": [None, {"6": "?"}]},
            "unreadable about letter",
        ),
        ({"prompt_token_ids": [5, 6], "prompt_logprobs": [None]}, "unreadable about letter"),
    ],
)
def test_a_server_that_tells_too_little_is_named(
    serve: Serve, choice: dict[str, Any], said: str
) -> None:
    server = serve(lambda _body: {"choices": [choice]})
    with ServedModel(server.url) as model, pytest.raises(BenchError, match=said):
        take_texts(model, first_texts(), tokens=64, say=print)


def test_quality_by_url_captures_and_compares(
    serve: Serve, tmp_path: Path, bench: Callable[..., Done]
) -> None:
    server, file = serve(completion), tmp_path / "one.json"
    asked = ("--url", f"{server.url}/v1", "--texts", "3", "--tokens", "2")
    assert f"wrote {file}" in bench("quality", *asked, "--save", str(file)).stderr
    done = bench("quality", str(file), *asked, "--gate")
    assert done.returncode == 0
    assert "6 positions of 3 texts" in done.stdout


def remembering(window_words: int) -> Answer:
    """A model that reads only the last words of what it is asked."""

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        words = body["messages"][0]["content"].split()
        found = re.search(r"opens with (\d+)\.", " ".join(words[-window_words:]))
        said = f"It is {found[1]}." if found else "I cannot find it."
        return {
            "choices": [{"message": {"content": said}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": TOKENS_A_WORD * len(words), "completion_tokens": 5},
        }

    return answer


def test_a_needle_outside_the_memory_is_missed(serve: Serve) -> None:
    server = serve(remembering(window_words=700))
    found = probes.search_needles(server.url, (1000, 4000), load_settings(), Access())
    assert [(item.length, item.depth, item.is_found) for item in found] == [
        (1000, 0.1, True),
        (1000, 0.5, True),
        (1000, 0.9, True),
        (4000, 0.1, False),
        (4000, 0.5, False),
        (4000, 0.9, True),
    ]
    assert all(0.85 * item.length < item.prompt_tokens <= item.length for item in found)
    table = list(probes.needle_lines(found))
    assert table[:3] == [
        "  tokens      10%    50%    90%",
        "    1000        +      +      +",
        "    4000        -      -      +",
    ]
    assert "found 4 of 6" in table


def test_a_gate_exits_eight_and_the_server_is_asked_by_its_name_with_its_key(
    serve: Serve, tmp_path: Path, bench: Callable[..., Done]
) -> None:
    server, key = serve(remembering(window_words=1)), tmp_path / "key"
    key.write_text("a-key\n")
    asked = ("--url", server.url, "--key-file", str(key), "--model", "mine")
    for command in (("needle", "--lengths", "1K"), ("tools",)):
        assert bench(*command, *asked).returncode == 0
        assert bench(*command, *asked, "--gate").returncode == 8
    server.answers["/v1/completions"] = lambda body: (200, completion(body))
    bench("quality", *asked, "--texts", "1", "--save", str(tmp_path / "one.json"))
    assert {sent for path, sent, _ in server.asked if path.endswith("completions")} == {
        "Bearer a-key"
    }
    assert {body["model"] for body in server.bodies} == {"mine"}


@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_a_haystack_has_its_needle_once_and_in_place(depth: float) -> None:
    lines = probes.haystack(100, depth, 48213, seed=1).splitlines()
    assert [at for at, line in enumerate(lines) if "48213" in line] == [round(depth * 100)]
    assert len(set(lines)) == 101


def call(name: str, arguments: object) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"tool_calls": [{"type": "function", "function": {"name": name, "arguments": text}}]}


TIDE = call("get_tide", {"harbour": "Bergen", "date": "2026-05-04"})
MARKUP = "<tool_call>\n<function=get_tide>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("case", "message", "problem"),
    [
        (0, TIDE, ""),
        (0, {"content": MARKUP}, "the parser left '<tool_call' in the text"),
        (0, {"content": "At noon."}, "expected one call of get_tide, got none"),
        (0, {"content": None, "tool_calls": TIDE["tool_calls"] * 2}, "got 2"),
        (0, call("get_tides", {}), "expected get_tide, got 'get_tides'"),
        (0, call("get_tide", "{"), "the arguments are not JSON"),
        (0, call("get_tide", {"harbour": "Bergen"}), "expected the arguments date, harbour"),
        (0, call("get_tide", {"harbour": "Bergen", "date": 2026}), "wrong value or type: date"),
        (1, call("set_heating", {"room": "workshop", "celsius": 17.5}), ""),
        (1, call("set_heating", {"room": "workshop", "celsius": "17.5"}), "type: celsius"),
        (2, call("add_to_list", {"items": ["flour", "lemons", "salt"]}), ""),
        (2, call("add_to_list", {"items": '["flour", "lemons", "salt"]'}), "type: items"),
        (3, {"content": "God morgen!"}, ""),
        (3, TIDE, "a tool was called that nobody needs"),
    ],
)
def test_a_call_is_right_or_says_why_not(case: int, message: dict[str, Any], problem: str) -> None:
    found = probes.judge(shipped(probes.CASES)["cases"][case], message)
    assert problem in found.problem
    assert bool(problem) == bool(found.problem)
