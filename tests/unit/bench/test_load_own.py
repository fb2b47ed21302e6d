"""A user's own prompts, sampling, body and headers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sparkdeploy.bench.load.additions import body_of, headers_of
from sparkdeploy.bench.load.prompts import DEFAULT_MAX_TOKENS, read_prompts
from sparkdeploy.bench.suites import Route
from sparkdeploy.errors import UsageError
from tests.unit.bench.loads import QUICK, suite_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fakes.vllm_server import FakeEngine
    from tests.unit.program import Done

GOOD = {"prompt": "Hello"}


def write(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "own.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_prompts_are_read_in_their_order(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    path = write(tmp_path, {"prompt": "a\u2028b", "max_tokens": 3}, "", {"messages": messages})

    texts = read_prompts(path, Route.CHAT)

    assert [prompt.name for prompt in texts.prompts] == ["line 1", "line 3"]
    assert texts.prompts[0].messages == ({"role": "user", "content": "a\u2028b"},)
    assert list(texts.prompts[1].messages) == messages
    assert [prompt.max_tokens for prompt in texts.prompts] == [3, DEFAULT_MAX_TOKENS]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no JSON"),
        ("[]", "no JSON object"),
        ({}, "either messages or prompt"),
        ({"prompt": "a", "messages": []}, "either messages or prompt"),
        ({"prompt": ""}, "prompt is no text"),
        ({"prompt": ["a"]}, "prompt is no text"),
        ({"prompt": "a", "max_token": 3}, "'max_token' is not known"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens is 0"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens is true"),
        ({"prompt": "a", "max_tokens": 2.5}, "max_tokens is 2.5"),
        ({"messages": []}, "no list of messages"),
        ({"messages": ["a"]}, "object with a role"),
        ({"messages": [{"content": "a"}]}, "object with a role"),
        ({"messages": [{"role": "user"}]}, "role user has no content"),
    ],
)
def test_what_is_no_prompt_is_named_with_its_line(tmp_path: Path, line: object, words: str) -> None:
    with pytest.raises(UsageError, match=f"line 2: .*{words}"):
        read_prompts(write(tmp_path, GOOD, line), Route.CHAT)


def test_sampling_and_extra_fields_come_together() -> None:
    body = body_of({"temperature": 0.7, "top_p": None}, '{"min_p": 0.1}')

    assert body == {"temperature": 0.7, "min_p": 0.1}


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("{", "no JSON"),
        ("[1]", "no JSON object"),
        ('{"stream": false}', "stream is set by the measurement"),
        ('{"n": 2}', "n is set by the measurement"),
        ('{"temperature": 1}', "both are given"),
    ],
)
def test_what_cannot_be_added_is_named(extra: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        body_of({"temperature": 0.5}, extra)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["X-A"], "number 1 is no header"),
        (["X-A: b\r\nX-C: d"], "number 1 is no header"),
        (["X A: b"], "number 1 is no header"),
        (["X-A: b", "x-a: c"], "x-a is given twice"),
        (["Host: b"], "set by the client itself"),
        (["Authorization: Bearer hush"], "Authorization: a secret"),
        (["x-api-key: hush"], "x-api-key: a secret"),
    ],
)
def test_what_is_no_header_is_named_without_its_value(lines: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        headers_of(lines)

    assert "hush" not in caught.value.message + (caught.value.hint or "")


@pytest.mark.outside
def test_own_requests_are_sent_and_told_without_header_values(
    bench: Callable[..., Done],
    engine: FakeEngine,
    tmp_path: Path,
) -> None:
    path = write(tmp_path, {"prompt": "one", "max_tokens": 5}, {"prompt": "two", "max_tokens": 7})

    done = bench(
        *("load", "--url", engine.url, *QUICK, "--prompts", path, "--route", "completions"),
        *("--temperature", "0.7", "--top-k", "20", "--extra-body", '{"min_p": 0.1}'),
        *("--header", "X-Tenant: hush-hush", "--json"),
    )

    assert done.returncode == 0, done.stderr
    asked = [body for body in engine.asked if body["max_tokens"] > 2][1:]
    assert {(body["prompt"], body["max_tokens"]) for body in asked} == {("one", 5), ("two", 7)}
    assert all("messages" not in body for body in asked)
    assert {(body["temperature"], body["top_k"], body["min_p"]) for body in asked} == {
        (0.7, 20, 0.1)
    }
    assert {head[":path"] for head in engine.heads} == {"/v1/completions"}
    assert {head["X-Tenant"] for head in engine.heads} == {"hush-hush"}
    suite = suite_of(tmp_path)
    assert "hush-hush" not in done.stdout + done.stderr + json.dumps(suite)
    assert suite["headers"] == ["X-Tenant"]
    assert suite["body"] == {"temperature": 0.7, "top_k": 20, "min_p": 0.1}
    assert suite["temperature"] == 0.7
    (cell,) = suite["cells"]
    assert cell["max_tokens"] == 7
    assert {sample["prompt"] for sample in cell["samples"]} == {"line 1", "line 2"}
