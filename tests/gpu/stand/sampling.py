"""What a server on the stand makes of requests that sample: each kind alone, and its answer."""

import json
import urllib.error
import urllib.request
from typing import Any

PROMPT = "river stone 7 and the night"
KINDS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8},
    "top-k": {"temperature": 0.8, "top_k": 20},
    "top-p": {"temperature": 0.8, "top_p": 0.9},
    "penalties": {
        "temperature": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.5,
        "repetition_penalty": 1.1,
    },
    "four answers": {"temperature": 0.8, "n": 4},
    "log probabilities": {"temperature": 0.8, "logprobs": 3},
    "grammar": {"temperature": 0.8, "structured_outputs": {"choice": ["yes", "no"]}},
    "regular expression": {"temperature": 0.8, "structured_outputs": {"regex": "[0-9]{3}"}},
    "min-p": {"temperature": 0.8, "min_p": 0.05},
}  # fmt: skip
SEEDED = {"temperature": 0.8, "seed": 7}


def seen(url: str) -> dict[str, Any]:
    """What became of each kind: its first text, or the status and words of a refusal."""
    found: dict[str, Any] = {kind: _texts(url, extra) for kind, extra in KINDS.items()}
    first, again = (_texts(url, SEEDED) for _ in range(2))
    return {**found, "a seed twice": {"equal": first == again, "text": first}}


def _texts(url: str, extra: dict[str, Any]) -> Any:
    body = {"model": "twin", "prompt": PROMPT, "max_tokens": 48, "return_token_ids": True, **extra}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=90) as answer:
            choices = json.load(answer)["choices"]
    except urllib.error.HTTPError as error:
        return {"status": error.code, "said": error.read(400).decode(errors="replace")}
    except OSError as error:
        return {"failed": repr(error)}
    if "logprobs" in extra:
        return [choices[0]["text"][:80], len(choices[0]["logprobs"]["tokens"])]
    return [choice["text"][:80] for choice in choices]
