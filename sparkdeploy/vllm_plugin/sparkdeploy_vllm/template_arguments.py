"""Keeps a client's words to the tokenizer out of its words to the chat template; standard library.

vLLM hands what a client sends as `chat_template_kwargs` to `apply_chat_template`, which has
parameters of its own beside the template's variables: `padding` and `max_length` make it build
millions of tokens before anything is compared with the context. They are removed from the body
before vLLM reads it, on every route, because each of vLLM's request classes reads them by itself.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from sparkdeploy_vllm.asgi import App, Message, Receive, Scope, Send, answer_json

TEMPLATE_FIELD = "chat_template_kwargs"
PROCESSOR_FIELD = "mm_processor_kwargs"
"""A processor of images hands the same parameters on to its tokenizer."""
_PARAMETERS = """
    add_special_tokens is_split_into_words load_audio_from_video max_length pad_to_multiple_of
    padding padding_side padding_strategy processor_kwargs return_assistant_tokens_mask
    return_attention_mask return_dict return_length return_offsets_mapping
    return_overflowing_tokens return_special_tokens_mask return_tensors return_token_type_ids
    split_special_tokens stride tokenize tokenizer_kwargs truncation truncation_side
    truncation_strategy
"""
TOKENIZER_PARAMETERS = frozenset(_PARAMETERS.split())
"""Parameters of transformers' `apply_chat_template` and of the tokenizer that it calls."""
_METHODS = frozenset({"POST", "PUT", "PATCH"})
# JSON may spell a letter as \u0063, and Python reads UTF-16 and UTF-32, which have NULs here.
_MAY_NAME_THEM = re.compile(rb"chat_template_kwargs|mm_processor_kwargs|\\u00[5-7]|\0")
_REFUSAL = {
    "message": "the body is not JSON that can be read",
    "type": "invalid_request_error",
    "code": 400,
}


class DropTokenizerArguments:
    """ASGI layer that passes every request on, its JSON without parameters of the tokenizer."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kinds = _content_types(scope) if scope["type"] == "http" else []
        if scope["type"] != "http" or scope["method"] not in _METHODS or _is_form(kinds):
            await self.app(scope, receive, send)
            return
        messages, body = await _received(receive)
        if _MAY_NAME_THEM.search(body):
            try:
                cleaned = without_tokenizer_parameters(body)
            except (ValueError, RecursionError):
                # vLLM reads a body as JSON where no type is given, too.
                if not kinds or any(b"json" in kind for kind in kinds):
                    await answer_json(send, 400, {"error": _REFUSAL})
                    return
                cleaned = body
            if cleaned is not body:
                messages = [{"type": "http.request", "body": cleaned, "more_body": False}]
                others = [it for it in scope["headers"] if it[0].lower() != b"content-length"]
                length = (b"content-length", str(len(cleaned)).encode())
                scope = {**scope, "headers": [*others, length]}
        await self.app(scope, _replayed(messages, receive), send)


def without_tokenizer_parameters(body: bytes) -> bytes:
    """Return a JSON body without them, the very same object where it names none."""
    content = json.loads(body)
    removed = sum(_clean(mapping) for mapping in _mappings(content))
    return json.dumps(content).encode() if removed else body


def _clean(mapping: dict[str, Any]) -> int:
    """Remove the parameters from the two fields of a mapping; return how many there were."""
    template = mapping.get(TEMPLATE_FIELD)
    fields = [template] if isinstance(template, dict) else []
    removed = 0
    for arguments in (*fields, *_mappings(mapping.get(PROCESSOR_FIELD))):
        for name in TOKENIZER_PARAMETERS & arguments.keys():
            del arguments[name]
            removed += 1
    return removed


def _mappings(content: object) -> Iterator[dict[str, Any]]:
    """Yield every mapping at any depth, without recursion: the depth is a client's choice."""
    waiting = [content]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _is_form(kinds: list[bytes]) -> bool:
    """Say whether the body is a form with files, such as sound; vLLM reads no field of these."""
    return bool(kinds) and all(kind.startswith(b"multipart/") for kind in kinds)


def _content_types(scope: Scope) -> list[bytes]:
    return [it.strip().lower() for name, it in scope["headers"] if name.lower() == b"content-type"]


async def _received(receive: Receive) -> tuple[list[Message], bytes]:
    """Return all messages of a request's body, as vLLM itself waits for it, and the body."""
    messages: list[Message] = []
    while True:
        messages.append(await receive())
        if messages[-1]["type"] != "http.request" or not messages[-1].get("more_body", False):
            return messages, b"".join(message.get("body", b"") for message in messages)


def _replayed(messages: list[Message], receive: Receive) -> Receive:
    """Return what gives these messages first, and then what comes: a client that hangs up."""
    waiting = iter(messages)

    async def replay() -> Message:
        return next(waiting, None) or await receive()

    return replay
