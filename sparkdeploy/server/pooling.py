"""Endpoints of models that write no text: embeddings, scores, classes.

vLLM has only the routes that its model can serve, so the first that exists is the model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
MEASURE_HINT = (
    "vLLM's own tool measures it, in its container: `docker exec sparkdeploy-NAME "
    "vllm bench serve --backend openai-embeddings --help=all` (docs/bench.md has a whole line)"
)


@dataclass(frozen=True, slots=True)
class PoolingEndpoint:
    path: str
    key: str
    constant: tuple[tuple[str, str], ...] = ()

    def body(self, texts: Sequence[str]) -> dict[str, Any]:
        return {**dict(self.constant), self.key: list(texts)}


QUESTION = "Which city is the capital of France?"
POOLING_ENDPOINTS = (
    PoolingEndpoint("/v1/embeddings", "input"),
    PoolingEndpoint("/score", "text_2", (("text_1", QUESTION),)),
    PoolingEndpoint("/rerank", "documents", (("query", QUESTION),)),
    PoolingEndpoint("/classify", "input"),
    PoolingEndpoint("/pooling", "input"),
)
"""As vLLM 0.25.1, 0.32.0 and 0.33.0 have them; a model with embeddings has scores as well."""


def route_to_try(answered: str) -> str:
    """Return the route for a user's first request: a chat's for a model that completes texts."""
    return CHAT if answered == COMPLETIONS else answered


def example_body(path: str, model: str) -> Mapping[str, Any]:
    if path == CHAT:
        return {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    endpoint = next(item for item in POOLING_ENDPOINTS if item.path == path)
    return {"model": model, **endpoint.body(["Paris is the capital of France."])}
