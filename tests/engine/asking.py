"""A client that asks a server all the time, and remembers who answered."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Self

ASK_EVERY_S = 0.1
ALIAS = "chat"
"""What clients of both models ask for; each model has a name of its own beside it."""
MODELS = ("first", "second")


@dataclass(frozen=True)
class Reply:
    """One answer: when, to what name, by which model, and its text; empty where it was refused."""

    at_s: float
    asked: str
    model: str
    text: str


@dataclass
class Client:
    """Asks for the alias and for both models in turns, until it is told to end."""

    port: int
    replies: list[Reply] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Begin to ask."""
        self._thread = threading.Thread(target=self._ask_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def _ask_on(self) -> None:
        while not self._over.wait(ASK_EVERY_S):
            for name in (ALIAS, *MODELS):
                with contextlib.suppress(OSError, ValueError, HTTPException):
                    self.replies.append(self._ask(name))

    def _ask(self, name: str) -> Reply:
        body = json.dumps({"model": name, "prompt": "x", "max_tokens": 1})
        told = {"Content-Type": "application/json"}
        # Closed also where a server that ends breaks off.
        with contextlib.closing(HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("POST", "/v1/completions", body, told)
            answer = connection.getresponse()
            content = json.loads(answer.read())
        if answer.status != 200:
            return Reply(time.monotonic(), name, "", "")
        return Reply(time.monotonic(), name, content["model"], content["choices"][0]["text"])

    def texts(self, name: str) -> list[str]:
        """What was answered to a name, each once, in order."""
        return list(dict.fromkeys(it.text for it in self.replies if it.asked == name))

    def downtime_s(self) -> float:
        """The longest time between two answers to the alias."""
        times = [it.at_s for it in self.replies if it.asked == ALIAS and it.model]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def check_names(self) -> None:
        """Nobody who asked for one model was answered by the other."""
        for model in MODELS:
            assert {it.model for it in self.replies if it.asked == model} <= {model, ""}
        assert {it.model for it in self.replies if it.asked == ALIAS} <= {*MODELS, ""}
