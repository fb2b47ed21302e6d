"""A fake engine that answers the questions about quality, needles and tools as well."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.unit.bench.fake_engine import TEMPLATE_TOKENS, TOKENS_A_WORD, FakeEngine, Handler

CALLS = {
    "Bergen": ("get_tide", {"harbour": "Bergen", "date": "2026-05-04"}),
    "workshop": ("set_heating", {"room": "workshop", "celsius": 17.5}),
    "lemons": ("add_to_list", {"items": ["flour", "lemons", "salt"]}),
}


class TalkingEngine(FakeEngine):
    """`logprob` is what it thinks of every token, in nats: another value is another model."""

    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = TalkingHandler
        self.logprob = -0.1


class TalkingHandler(Handler):
    server: TalkingEngine

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        if self.path == "/health":
            self._send(200, "")
        else:
            super().do_GET()

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        length = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(length))
        if body.get("stream"):
            self._stream(body)
            return
        self.server.before(body)
        answer = self._thoughts(body) if "prompt" in body else self._words(body)
        self._send(200, json.dumps(answer))

    def _stream(self, body: dict[str, Any]) -> None:
        self.server.before(body)
        text = " ".join(message["content"] for message in body["messages"])
        prompt_tokens = TEMPLATE_TOKENS + TOKENS_A_WORD * len(text.split())
        self.server.count(body, prompt_tokens)
        self.send_response(200)
        self.end_headers()
        for data in self._answer(body, prompt_tokens):
            self.wfile.write(data)

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
