"""The HTTP client of a served model."""

import contextlib
import io
import time
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from sparkdeploy.bounded_http import AnswerTooLargeError, BoundedSession, chunks, read_whole
from sparkdeploy.errors import UnhealthyError
from sparkdeploy.recipe.answers import COMPLETIONS, WITHOUT_TEXT, Answers, Task
from sparkdeploy.server.streaming import error_message
from sparkdeploy.server.trust import CA_HINT, UNTRUSTED, connection_error

HEALTH_PATH = "/health"
"""Needs no key, and is asked while anything may listen on the port: it gets none."""
HEALTH_TIMEOUT_S = 1.0
CALL_TIMEOUT_S = 10.0
ROUTES_TIMEOUT_S = 120.0
"""vLLM makes its list of routes when it is first asked for: seconds, on a busy machine many."""
ANSWER_TIMEOUT_S = 600.0
STREAM_LIMIT_S = 24 * 3600.0
"""For a whole answer that is streamed: a million tokens take hours on a Spark."""
MAX_STREAM_BYTES = 1 << 30
SAMPLE_RATE_HZ = 16_000
GREEDY = {"temperature": 0.0}
_SHOWN_CHARACTERS = 500
_REFUSAL_HINTS = {
    401: "the server requires its API key as a Bearer token",
    403: "the server requires its API key as a Bearer token",
    503: "the server is still starting; try again when it is ready",
}
_NO_ROUTE = '{"detail":"Not Found"}'
"""FastAPI's own message; a missing model has another one."""


@dataclass(frozen=True, slots=True)
class Completion:
    text: str
    prompt_tokens: int
    completion_tokens: int
    duration_s: float
    reasoning: str = ""
    path: str = COMPLETIONS


class NoSuchRouteError(UnhealthyError):
    """The server has no such route at all; another one may be what its model is for."""


class ServedModel(contextlib.AbstractContextManager["ServedModel"]):
    """The OpenAI-style server at a base URL, without proxies or redirects; a context manager."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        model: str | None = None,
        ca_file: Path | None = None,
        require_listener: Callable[[], None] | None = None,
    ) -> None:
        """Ask for `model`, or the first; `require_listener` is called before a key or prompt."""
        self.base_url = base_url.rstrip("/")
        self.api_key = api_key
        self.ca_file = ca_file
        self.require_listener = require_listener
        self._model = model
        self._session = BoundedSession()
        # A proxy from the environment would be asked for 127.0.0.1.
        self._session.trust_env = False
        self._session.auth = None  # a login in the address is sent
        if ca_file is not None:
            self._session.verify = str(ca_file)

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def again(self) -> "ServedModel":
        """Return another client of the same server; a session is for one thread."""
        return ServedModel(
            self.base_url,
            self.api_key,
            model=self.name,
            ca_file=self.ca_file,
            require_listener=self.require_listener,
        )

    def is_healthy(self, *, timeout_s: float = HEALTH_TIMEOUT_S) -> bool:
        with contextlib.suppress(UnhealthyError):
            self._call(HEALTH_PATH, timeout_s=timeout_s)
            return True
        return False

    def max_model_len(self) -> int | None:
        """Return how many tokens a request may take in all; None when the server does not say."""
        lengths = {item.get("id"): item.get("max_model_len") for item in self._models()}
        length = lengths.get(self.name)
        return int(length) if length else None

    def version(self) -> str | None:
        with contextlib.suppress(UnhealthyError):
            version = self._call_json("/version").get("version")
            return str(version) if version else None
        return None

    def complete(
        self,
        prompt: str,
        max_tokens: int,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
        extra: Mapping[str, Any] | None = None,
    ) -> Completion:
        body = {"prompt": prompt, "max_tokens": max_tokens, **(extra or {})}
        return self.generate(COMPLETIONS, body, timeout_s=timeout_s)

    def generate(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> Completion:
        """Continue a text or answer a conversation, greedily."""
        _ = self.name  # may take a request of its own, which does not count
        started_s = time.perf_counter()
        answer = self.ask(path, {**GREEDY, **body}, timeout_s=timeout_s)
        return _completion(path, answer, time.perf_counter() - started_s)

    def ask(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> dict[str, Any]:
        answer = self._call_json(path, timeout_s=timeout_s, body={**body, "model": self.name})
        if not answer.get("choices"):
            raise UnhealthyError(f"{self.base_url}{path} answered without a choice")
        return answer

    def answers(self, expected: Answers) -> Answers:
        """Return what the server's routes say that it answers, in the order that is expected."""
        paths = self._call_json("/openapi.json", timeout_s=ROUTES_TIMEOUT_S).get("paths")
        return expected.corrected(paths if isinstance(paths, dict) else ())

    def pool(self, text: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Completion:
        """Ask a model that writes no text, on the first of its routes that is there."""
        for task in (*WITHOUT_TEXT, Task.TRANSCRIPTIONS):
            with contextlib.suppress(NoSuchRouteError):
                is_speech = task is Task.TRANSCRIPTIONS
                body = {**({} if is_speech else task.body([text])), "model": self.name}
                file = _silence() if is_speech else None
                started_s = time.perf_counter()
                answer = self._call_json(task.path, timeout_s=timeout_s, body=body, file=file)
                return _completion(task.path, answer, time.perf_counter() - started_s)
        raise UnhealthyError(f"{self.base_url} has no route for texts, embeddings or scores")

    @contextlib.contextmanager
    def streamed(
        self, path: str, body: Mapping[str, Any], *, read_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> Iterator[Iterator[bytes]]:
        """Post a request and yield the answer's bytes; leaving the block ends the answer."""
        response = self._call(
            path, timeout_s=read_timeout_s, body={**body, "model": self.name}, is_streamed=True
        )
        with contextlib.closing(response):
            yield _chunks(response)

    def prompt_tokens(self, messages: Sequence[Mapping[str, Any]]) -> int | None:
        """Return the tokens of a conversation; None where the server has no such route."""
        with contextlib.suppress(UnhealthyError):
            body = {"model": self.name, "messages": list(messages)}
            count = self._call_json("/tokenize", timeout_s=ANSWER_TIMEOUT_S, body=body).get("count")
            return count if isinstance(count, int) else None
        return None

    def exposition(self, *, timeout_s: float = CALL_TIMEOUT_S) -> str:
        return self._call("/metrics", timeout_s=timeout_s).text

    @property
    def name(self) -> str:
        if self._model is None:
            models = self._models()
            if not models:
                raise UnhealthyError(f"{self.base_url} serves no model")
            self._model = str(models[0]["id"])
        return self._model

    def _models(self) -> Sequence[Mapping[str, Any]]:
        models: Sequence[Mapping[str, Any]] = self._call_json("/v1/models").get("data", ())
        return models

    def _call_json(
        self,
        path: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        body: Mapping[str, Any] | None = None,
        file: bytes | None = None,
    ) -> dict[str, Any]:
        """Something else may listen there, such as a web server with a page for every path."""
        response = self._call(path, timeout_s=timeout_s, body=body, file=file)
        try:
            answer = response.json()
        except requests.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise UnhealthyError(
                f"{self.base_url}{path} did not answer with a JSON object",
                hint="is this the address of an OpenAI-compatible server?",
                detail=response.text[:_SHOWN_CHARACTERS],
            )
        return answer

    def _call(
        self,
        path: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        body: Mapping[str, Any] | None = None,
        file: bytes | None = None,
        is_streamed: bool = False,
    ) -> requests.Response:
        url = self.base_url + path
        headers: dict[str, str] = {}
        if path != HEALTH_PATH:
            if self.require_listener is not None:
                self.require_listener()
            if self.api_key:
                headers["Authorization"] = f"Bearer {self.api_key}"
        self._session.deadline.allow(timeout_s)
        try:
            response = self._session.request(
                "GET" if body is None else "POST",
                url,
                json=body if file is None else None,
                data=body if file is not None else None,
                files={"file": ("silence.wav", file)} if file is not None else None,
                headers=headers,
                timeout=timeout_s,
                stream=is_streamed,
                allow_redirects=False,
            )
            if is_streamed and response.status_code == requests.codes.ok:
                self._session.deadline.allow(STREAM_LIMIT_S)
            elif is_streamed:
                read_whole(response)
        except requests.Timeout as error:
            raise UnhealthyError(f"{url} did not answer within {timeout_s:g} s") from error
        except AnswerTooLargeError as error:
            raise UnhealthyError(f"{url} cannot be read: {error}") from error
        except requests.RequestException as error:
            raise _no_connection(url, error) from error
        if response.status_code != requests.codes.ok:
            raise _refusal(url, response)
        return response


def _silence() -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setparams((1, 2, SAMPLE_RATE_HZ, 0, "NONE", ""))
        sound.writeframes(bytes(SAMPLE_RATE_HZ))
    return written.getvalue()


def _completion(path: str, answer: Mapping[str, Any], duration_s: float) -> Completion:
    """Return the text of an answer's first choice; a route for embeddings or scores has none."""
    choice, usage = (answer.get("choices") or [{}])[0], answer.get("usage") or {}
    message = choice.get("message") or {}
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    return Completion(
        text=str(choice.get("text") or message.get("content") or ""),
        prompt_tokens=int(usage.get("prompt_tokens") or usage.get("total_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        duration_s=duration_s,
        reasoning=str(reasoning),
        path=path,
    )


def _chunks(response: requests.Response) -> Iterator[bytes]:
    """Yield bytes as received; UnhealthyError when the connection ends before the answer."""
    # Without chunked encoding requests waits until it has all bytes that it is asked for.
    is_chunked = response.headers.get("Transfer-Encoding", "").lower() == "chunked"
    try:
        yield from chunks(response, MAX_STREAM_BYTES, None if is_chunked else 1)
    except AnswerTooLargeError as error:
        raise UnhealthyError(f"{response.url} cannot be read: {error}") from error
    except requests.RequestException as error:
        reason = connection_error(error) or "the connection ended"
        raise UnhealthyError(f"{response.url} ended its answer early: {reason}") from error


def _no_connection(url: str, error: requests.RequestException) -> UnhealthyError:
    reason = connection_error(error)
    hint, detail = (CA_HINT if UNTRUSTED in reason else None), (None if reason else str(error))
    words = f"{url} is not reachable" + (f": {reason}" if reason else "")
    return UnhealthyError(words, hint=hint, detail=detail)


def _refusal(url: str, response: requests.Response) -> UnhealthyError:
    if response.is_redirect:
        location = response.headers["Location"][:_SHOWN_CHARACTERS]
        return UnhealthyError(
            f"{url} answered {response.status_code}, a redirect to {location}, which is not "
            "followed",
            hint="vLLM sends none: is this its address?",
        )
    text = response.text.strip()
    message = error_message(text)[:_SHOWN_CHARACTERS]
    is_no_route = response.status_code == requests.codes.not_found and text == _NO_ROUTE
    kind = NoSuchRouteError if is_no_route else UnhealthyError
    hint = _REFUSAL_HINTS.get(response.status_code)
    return kind(f"{url} answered {response.status_code}: {message or response.reason}", hint=hint)
