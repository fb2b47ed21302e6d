"""A served model, asked over HTTP."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import requests

from sparkdeploy.errors import UnhealthyError
from sparkdeploy.server.metrics import Sample, Speculation, parse_samples, speculation, totals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

HEALTH_TIMEOUT_S = 1.0
CALL_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 600.0
_SHOWN_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Completion:
    """A text the model produced, and what it took."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    duration_s: float
    finish_reason: str = ""
    reasoning: str = ""
    """What a reasoning parser split off; a chat answer may hold nothing else."""

    @property
    def tokens_a_second(self) -> float:
        """Return completion tokens over the whole time, prefill included."""
        return self.completion_tokens / self.duration_s if self.duration_s > 0 else 0.0


class ServedModel:
    """The OpenAI-style server at a base URL such as `http://127.0.0.1:8000`; a context manager.

    Proxies of the environment are never used. Every failure is an UnhealthyError that carries
    the server's own words.
    """

    def __init__(
        self, base_url: str, api_key: str | None = None, *, model: str | None = None
    ) -> None:
        """Ask for `model` (the served name); without one for the first that the server names."""
        self.base_url = base_url.rstrip("/")
        self.api_key = api_key
        self._model = model
        self._session = requests.Session()
        # A proxy from the environment would be asked for 127.0.0.1, and ~/.netrc for a password.
        self._session.trust_env = False
        if api_key:
            self._session.headers["Authorization"] = f"Bearer {api_key}"

    def __enter__(self) -> ServedModel:
        """Return the model."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def is_healthy(self, *, timeout_s: float = HEALTH_TIMEOUT_S) -> bool:
        """Say whether /health answers 200 in time."""
        try:
            with self._session.get(self.base_url + "/health", timeout=timeout_s) as response:
                return bool(response.ok)
        except requests.RequestException:
            return False

    def served_models(self, *, timeout_s: float = CALL_TIMEOUT_S) -> tuple[str, ...]:
        """Return the names the server answers to."""
        answer = self._call_json("GET", "/v1/models", timeout_s=timeout_s)
        return tuple(str(item["id"]) for item in answer.get("data", ()))

    def max_model_len(self, *, timeout_s: float = CALL_TIMEOUT_S) -> int | None:
        """Return how many tokens a request may take in all; None when the server does not say."""
        answer = self._call_json("GET", "/v1/models", timeout_s=timeout_s)
        told = {item.get("id"): item.get("max_model_len") for item in answer.get("data", ())}
        length = told.get(self.name)
        return int(length) if length else None

    def version(self) -> str | None:
        """Return vLLM's own version; None for a server that has none to tell."""
        try:
            found = self._call_json("GET", "/version", timeout_s=CALL_TIMEOUT_S).get("version")
        except UnhealthyError:
            return None
        return str(found) if found else None

    def complete(
        self,
        prompt: str,
        max_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
        extra: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Continue a text with /v1/completions; greedy unless a temperature is given."""
        body = {"prompt": prompt, **_sampling(max_tokens, temperature, seed), **(extra or {})}
        answer, duration_s = self._generate("/v1/completions", body, timeout_s)
        choice = answer["choices"][0]
        return _completion(answer, choice, str(choice.get("text") or ""), "", duration_s)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        max_tokens: int,
        *,
        temperature: float = 0.0,
        seed: int | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
        extra: Mapping[str, Any] | None = None,
    ) -> Completion:
        """Answer a conversation with /v1/chat/completions; greedy unless told otherwise."""
        sampling = _sampling(max_tokens, temperature, seed)
        body = {"messages": [dict(message) for message in messages], **sampling, **(extra or {})}
        answer, duration_s = self._generate("/v1/chat/completions", body, timeout_s)
        choice = answer["choices"][0]
        message = choice.get("message") or {}
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        text = str(message.get("content") or "")
        return _completion(answer, choice, text, str(reasoning), duration_s)

    def ask(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> dict[str, Any]:
        """Post a request of the caller's own making and return the answer whole."""
        return self._generate(path, dict(body), timeout_s)[0]

    def exposition(self, *, timeout_s: float = CALL_TIMEOUT_S) -> str:
        """Return /metrics as it is."""
        return self._call("GET", "/metrics", timeout_s=timeout_s).text

    def samples(self, *, timeout_s: float = CALL_TIMEOUT_S) -> tuple[Sample, ...]:
        """Return everything /metrics shows."""
        return tuple(parse_samples(self.exposition(timeout_s=timeout_s)))

    def metrics(self) -> Mapping[str, float]:
        """Return each metric's sum over its labels."""
        return totals(self.samples())

    def speculation(self) -> Speculation | None:
        """Return the counters of speculative decoding; None when the server does not speculate."""
        return speculation(self.samples())

    def _generate(
        self, path: str, body: dict[str, Any], timeout_s: float
    ) -> tuple[dict[str, Any], float]:
        body["model"] = self.name
        started_s = time.perf_counter()
        answer = self._call_json("POST", path, timeout_s=timeout_s, body=body)
        if not answer.get("choices"):
            raise UnhealthyError(f"{self.base_url}{path} answered without a choice")
        return answer, time.perf_counter() - started_s

    @property
    def name(self) -> str:
        """Return the served name that requests are for; the first one named by the server."""
        if self._model is None:
            names = self.served_models()
            if not names:
                raise UnhealthyError(f"{self.base_url} serves no model")
            self._model = names[0]
        return self._model

    def _call_json(
        self, method: str, path: str, *, timeout_s: float, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Something else may listen there, such as a web server with a page for every path."""
        response = self._call(method, path, timeout_s=timeout_s, body=body)
        try:
            answer = response.json()
        except requests.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise UnhealthyError(
                f"{self.base_url}{path} answered with something else than a JSON object",
                hint="is this the address of an OpenAI-compatible server?",
                detail=response.text[:_SHOWN_CHARACTERS],
            )
        return answer

    def _call(
        self, method: str, path: str, *, timeout_s: float, body: Mapping[str, Any] | None = None
    ) -> requests.Response:
        url = self.base_url + path
        try:
            response = self._session.request(method, url, json=body, timeout=timeout_s)
        except requests.Timeout as error:
            raise UnhealthyError(f"{url} did not answer within {timeout_s:g} s") from error
        except requests.RequestException as error:
            raise UnhealthyError(f"{url} is not reachable", detail=str(error)) from error
        if response.status_code != requests.codes.ok:
            raise _refusal(url, response)
        return response


def _sampling(max_tokens: int, temperature: float, seed: int | None) -> dict[str, Any]:
    sampling = {"max_tokens": max_tokens, "temperature": temperature}
    return sampling if seed is None else {**sampling, "seed": seed}


def _completion(
    answer: Mapping[str, Any],
    choice: Mapping[str, Any],
    text: str,
    reasoning: str,
    duration_s: float,
) -> Completion:
    usage = answer.get("usage") or {}
    return Completion(
        text=text,
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        duration_s=duration_s,
        finish_reason=str(choice.get("finish_reason") or ""),
        reasoning=reasoning,
    )


def _refusal(url: str, response: requests.Response) -> UnhealthyError:
    hint = None
    if response.status_code in {requests.codes.unauthorized, requests.codes.forbidden}:
        hint = "the server wants its API key as a Bearer token"
    words = response.text.strip()[:_SHOWN_CHARACTERS]
    return UnhealthyError(
        f"{url} answered {response.status_code}: {words or response.reason}", hint=hint
    )
