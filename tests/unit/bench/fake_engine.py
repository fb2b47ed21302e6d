"""A server that answers like vLLM with MTP, at once, and counts what it gave."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.unit.bench.scripted import DONE, event

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS_A_WORD = 2
TEMPLATE_TOKENS = 5
TOKENS_A_STEP = 3


class FakeEngine(ThreadingHTTPServer):
    """Streams `max_tokens` tokens in chunks of up to three; `refuse` and `before` change that."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.max_model_len: int | None = 8192
        self.refuse: Callable[[dict[str, Any]], str | None] = lambda _body: None
        """Returns the words of a 400, or None."""
        self.before: Callable[[dict[str, Any]], None] = lambda _body: None
        self.has_metrics = True
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

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

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


class Handler(BaseHTTPRequestHandler):
    server: FakeEngine

    def do_GET(self) -> None:
        if self.server.status != 200:
            self._send(self.server.status, '{"error": {"message": "Loading model"}}')
        elif self.path == "/v1/models":
            model = {"id": "qwen", "max_model_len": self.server.max_model_len}
            self._send(200, json.dumps({"data": [model]}))
        elif self.path == "/metrics" and self.server.has_metrics:
            self._send(200, self.server.metrics())
        elif self.path == "/version":
            self._send(200, json.dumps({"version": "0.0-fake"}))
        else:
            self._send(404, "no such route")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.before(body)
        if self.server.post_answer is not None:
            self._send(*self.server.post_answer)
            return
        words = self.server.refuse(body)
        if words is not None:
            self._send(400, words)
            return
        if self.path not in {"/v1/chat/completions", "/v1/completions"}:
            self._send(404, "no such route")
            return
        self.server.heads.append({**self.headers, ":path": self.path})
        messages = body.get("messages", [{"content": body.get("prompt")}])
        text = " ".join(str(message.get("content")) for message in messages)
        prompt_tokens = TEMPLATE_TOKENS + TOKENS_A_WORD * len(text.split())
        self.server.count(body, prompt_tokens)
        self.send_response(200)
        self.end_headers()
        for data in self._answer(body, prompt_tokens):
            self.wfile.write(data)

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

    def _send(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...
