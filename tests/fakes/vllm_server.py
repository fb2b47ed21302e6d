"""A server that answers like vLLM with MTP, at once, and counts what it gave."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

from tests.fakes.http_server import Handler, HttpServer
from tests.fakes.scripted_server import DONE, event

TOKENS_A_WORD = 2
TEMPLATE_TOKENS = 5
TOKENS_A_STEP = 3
CALLS = {
    "Bergen": ("get_tide", {"harbour": "Bergen", "date": "2026-05-04"}),
    "workshop": ("set_heating", {"room": "workshop", "celsius": 17.5}),
    "lemons": ("add_to_list", {"items": ["flour", "lemons", "salt"]}),
}


class FakeEngine(HttpServer):
    """Streams `max_tokens` tokens in chunks of up to three; `refuse` and `before` change that."""

    def __init__(self, handler: type[Handler] | None = None) -> None:
        super().__init__(handler or EngineHandler)
        self.max_model_len: int | None = 8192
        self.refuse: Callable[[dict[str, Any]], str | None] = lambda _body: None
        """Returns the words of a 400, or None."""
        self.before: Callable[[dict[str, Any]], None] = lambda _body: None
        self.has_metrics = True
        self.has_tokenize = False
        self.tells_usage = True
        self.post_answer: tuple[int, str] | None = None
        """Status and words in place of every completion."""
        self.status = 200
        """Of every answer; another one than 200 comes with words."""
        self.accepted_a_draft = 2
        """Of the two tokens that each step drafts."""
        self.counts_late_s = 0.0
        """How long after an answer its tokens are counted, as a busy vLLM does."""
        self.asked: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.given_tokens = 0
        self.read_tokens = 0
        self._lock = threading.Lock()

    def count(self, body: dict[str, Any], prompt_tokens: int) -> None:
        with self._lock:
            self.asked.append(body)
            self.read_tokens += prompt_tokens
        if self.counts_late_s:
            threading.Timer(self.counts_late_s, self._give, (body["max_tokens"],)).start()
        else:
            self._give(body["max_tokens"])

    def _give(self, tokens: int) -> None:
        with self._lock:
            self.given_tokens += tokens

    def metrics(self) -> str:
        drafts = self.given_tokens // TOKENS_A_STEP
        return (
            f"vllm:prompt_tokens_total {self.read_tokens}\n"
            f"vllm:generation_tokens_total {self.given_tokens}\n"
            "vllm:kv_cache_usage_perc 0.125\n"
            f"vllm:spec_decode_num_drafts_total {drafts}\n"
            f"vllm:spec_decode_num_draft_tokens_total {2 * drafts}\n"
            f"vllm:spec_decode_num_accepted_tokens_total {self.accepted_a_draft * drafts}\n"
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {drafts}\n'
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="1"}} {drafts}\n'
        )


class EngineHandler(Handler):
    server: FakeEngine

    def get(self) -> None:
        if self.server.status != 200:
            self.send(self.server.status, '{"error": {"message": "Loading model"}}')
        elif self.path == "/v1/models":
            model = {"id": "qwen", "max_model_len": self.server.max_model_len}
            self.send(200, {"data": [model]})
        elif self.path == "/metrics" and self.server.has_metrics:
            self.send(200, self.server.metrics())
        elif self.path == "/version":
            self.send(200, {"version": "0.0-fake"})
        else:
            self.send(404, "no such route")

    def post(self) -> None:
        body = self.body()
        self.server.before(body)
        if self.server.post_answer is not None:
            self.send(*self.server.post_answer)
            return
        words = self.server.refuse(body)
        if words is not None:
            self.send(400, words)
            return
        if self.path == "/tokenize" and self.server.has_tokenize:
            self.send(200, {"count": _prompt_tokens(body)})
            return
        if self.path not in {"/v1/chat/completions", "/v1/completions"}:
            self.send(404, "no such route")
            return
        self.complete(body)

    def complete(self, body: dict[str, Any]) -> None:
        self.server.heads.append({**self.headers, ":path": self.path})
        prompt_tokens = _prompt_tokens(body)
        self.server.count(body, prompt_tokens)
        self.stream(*self._answer(body, prompt_tokens))

    def _answer(self, body: dict[str, Any], prompt_tokens: int) -> list[bytes]:
        total = body["max_tokens"]
        options = body.get("stream_options", {}) if self.server.tells_usage else {}
        each = options.get("continuous_usage_stats")
        events = [event(usage=(prompt_tokens, 0) if each else None)]
        for given in range(0, total, TOKENS_A_STEP):
            count = min(TOKENS_A_STEP, total - given)
            events.append(
                event(
                    ids=range(count) if self._tells_ids(body) else None,
                    text="w " * count,
                    usage=(prompt_tokens, given + count) if each else None,
                )
            )
        if options.get("include_usage"):
            events.append(event(usage=(prompt_tokens, total), choices=False))
        return [*events, DONE]

    def _tells_ids(self, body: dict[str, Any]) -> bool:
        return self.server.tells_usage and bool(body.get("return_token_ids"))


def _prompt_tokens(body: dict[str, Any]) -> int:
    messages = body.get("messages", [{"content": body.get("prompt")}])
    text = " ".join(str(message.get("content")) for message in messages)
    return TEMPLATE_TOKENS + TOKENS_A_WORD * len(text.split())


class TalkingEngine(FakeEngine):
    """`logprob` is what it thinks of every token, in nats: another value is another model."""

    def __init__(self) -> None:
        super().__init__(TalkingHandler)
        self.logprob = -0.1


class TalkingHandler(EngineHandler):
    server: TalkingEngine

    def get(self) -> None:
        if self.path == "/health":
            self.send(200, "")
        else:
            super().get()

    def post(self) -> None:
        body = self.body()
        self.server.before(body)
        if body.get("stream"):
            self.complete(body)
        else:
            self.send(200, self._thoughts(body) if "prompt" in body else self._words(body))

    def _thoughts(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = [len(word) for word in body["prompt"].split()]
        told = [{str(i): {"logprob": self.server.logprob}, "0": {"logprob": -4.0}} for i in ids]
        choice = {
            "text": "on",
            "token_ids": list(range(body["max_tokens"])),
            "prompt_token_ids": ids,
            "prompt_logprobs": [None, *told[1:]],
        }
        return {"choices": [choice]}

    def _words(self, body: dict[str, Any]) -> dict[str, Any]:
        text = body["messages"][0]["content"]
        usage = {"prompt_tokens": 2 * len(text.split()), "completion_tokens": 3}
        message: dict[str, Any] = {"content": "God morgen"}
        call = next((CALLS[word] for word in CALLS if word in text), None)
        if "tools" not in body:
            found = re.search(r"opens with (\d+)", text)
            message = {"content": f"It is {found[1] if found else 'not there'}."}
        elif call is not None:
            function = {"name": call[0], "arguments": json.dumps(call[1])}
            message = {"content": "", "tool_calls": [{"function": function}]}
        return {"choices": [{"message": message}], "usage": usage}
