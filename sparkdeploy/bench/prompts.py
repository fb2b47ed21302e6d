"""What is asked: five classes as in the field's script, three for decoding, and made-up texts.

The wording is our own; classes and lengths are those of the published tables (bench_qwen35.sh of
albond/DGX_Spark_Qwen3.5-122B-A10B-AR-INT4).
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation to be continued, and how far."""

    name: str
    messages: tuple[Message, ...]
    max_tokens: int


def _user(name: str, max_tokens: int, text: str) -> Prompt:
    return Prompt(name, ({"role": "user", "content": text},), max_tokens)


FIVE = (
    _user(
        "qa",
        256,
        "In which situations would an engineer pick UDP over TCP, and what does each of the two "
        "promise? Answer briefly.",
    ),
    _user(
        "code",
        512,
        "Write a Python function with type hints that looks up a value in a sorted list by binary "
        "search and returns its index or None. Add a docstring and three assertions.",
    ),
    _user(
        "json",
        1024,
        "Make up ten members of staff of a small observatory. Return nothing but a JSON array of "
        "objects with the keys name, age, role, department, email and salary.",
    ),
    _user("math", 64, "What is 4827 times 3916? Reply with the number alone."),
    _user(
        "long_code",
        2048,
        "Implement a red-black tree in Python as one class: insert, delete, search, minimum, "
        "maximum, successor, in-order traversal and a method that checks every invariant. "
        "Comment each rotation and each recolouring case.",
    ),
)
"""End to end; comparable with all published tables."""

DECODE_TOKENS = 512
DECODE = (
    _user(
        "prose",
        DECODE_TOKENS,
        "Tell the story of a lighthouse keeper who finds that the light has begun to answer "
        "passing ships by itself. Plain prose, past tense, at least six paragraphs.",
    ),
    _user(
        "code",
        DECODE_TOKENS,
        "Write a thread-safe LRU cache in Python with a time to live for each entry, statistics of "
        "hits and misses, and unit tests with pytest.",
    ),
    Prompt(
        "agent",
        (
            {
                "role": "system",
                "content": "You are a coding agent. Each turn you get the output of your last "
                "tool call and answer with one JSON object: "
                '{"thought": ..., "tool": "read_file" | "write_file" | "run", "arguments": {...}}.',
            },
            {"role": "user", "content": "The tests of the package `meters` fail. Repair it."},
            {
                "role": "assistant",
                "content": '{"thought": "First I run the tests.", "tool": "run", '
                '"arguments": {"command": "pytest -q"}}',
            },
            {
                "role": "user",
                "content": "exit code 1\n"
                "FAILED tests/test_convert.py::test_feet - assert 3.2808 == 3.28084\n"
                "FAILED tests/test_convert.py::test_inches - KeyError: 'in'\n"
                "2 failed, 11 passed",
            },
            {
                "role": "assistant",
                "content": '{"thought": "I read the module under test.", "tool": "read_file", '
                '"arguments": {"path": "meters/convert.py"}}',
            },
            {
                "role": "user",
                "content": "FACTORS = {'m': 1.0, 'cm': 0.01, 'km': 1000.0, 'ft': 0.3048}\n\n"
                "def convert(value, source, target):\n"
                "    metres = value * FACTORS[source]\n"
                "    return round(metres / FACTORS[target], 4)\n\n"
                "Write the whole corrected file with write_file: add inches, yards and miles, "
                "round to ten digits, and give every function a docstring with an example.",
            },
        ),
        DECODE_TOKENS,
    ),
)
"""Decode only: drafts are accepted differently often in prose, code and an agent's turns."""

_SUBJECTS = ("pump", "valve", "sensor", "turbine", "ledger", "antenna", "furnace", "bridge")
_VERBS = ("records", "follows", "delays", "repeats", "balances", "inspects", "feeds", "replaces")
_PLACES = ("north hall", "lower deck", "second shift", "test bench", "old quarry", "control room")


def filler(words: int, *, seed: int) -> str:
    """Return a made-up report of `words` words, two at least; the same for the same seed.

    The first sentence already differs between seeds, so that no prefix cache can help. The last
    may break off: whole ones would be up to 14 words too many.
    """
    dice = random.Random(seed)  # noqa: S311 - a text, not a secret
    sentences = [f"Report {dice.getrandbits(48):012x}."]
    count = 2
    while count < words:
        sentence = (
            f"On day {dice.randrange(1, 366)} the {dice.choice(_SUBJECTS)} in the "
            f"{dice.choice(_PLACES)} {dice.choice(_VERBS)} the {dice.choice(_SUBJECTS)} "
            f"at {dice.randrange(10, 990)} units."
        )
        sentences.append(sentence)
        count += len(sentence.split())
    return " ".join(" ".join(sentences).split()[:words])


def context_prompt(words: int, *, seed: int, max_tokens: int) -> Prompt:
    text = filler(words, seed=seed)
    return _user("context", max_tokens, f"{text}\n\nSummarise the report above in detail.")


def digest(prompts: tuple[Prompt, ...]) -> str:
    """Return what makes two suites ask the same."""
    content = [(item.name, item.messages, item.max_tokens) for item in prompts]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


TOKEN_IDS_UP_TO = 8192
"""Prompts longer than this are asked without token ids: vLLM then returns the prompt's ids too,
a megabyte of JSON before the first token at 256K. `usage` in every chunk counts as well."""


class Dialect(Enum):
    """What of the counting a server lets itself be asked for, best first."""

    FULL = "token ids, and usage in every chunk"
    USAGE = "usage at the end"
    PLAIN = "nothing"


class Length(Enum):
    NATURAL = "when the model ends it, or at max_tokens"
    EXACT = "at max_tokens"


@dataclass(frozen=True, slots=True)
class Ask:
    prompt: Prompt
    length: Length = Length.NATURAL
    context_tokens: int | None = None
    words: int | None = None
    """Of the filler, for a prompt that is made to measure."""


def chat_body(ask: Ask, *, model: str, dialect: Dialect) -> dict[str, Any]:
    """Return the JSON of a streamed chat request at temperature 0."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [dict(message) for message in ask.prompt.messages],
        "max_tokens": ask.prompt.max_tokens,
        "temperature": 0.0,
        "stream": True,
    }
    if dialect is not Dialect.PLAIN:
        body["stream_options"] = {"include_usage": True}
    if dialect is Dialect.FULL:
        body["stream_options"]["continuous_usage_stats"] = True
        if (ask.context_tokens or 0) <= TOKEN_IDS_UP_TO:
            body["return_token_ids"] = True
    if ask.length is Length.EXACT and dialect is Dialect.FULL:
        body["ignore_eos"] = True
        body["min_tokens"] = ask.prompt.max_tokens
    return body


SPARE_TOKENS = 32
SPARE_SHARE = 0.02
"""Words differ in tokens: over 200 prompts of 3K tokens, 0.7 % was the standard deviation with a
tokenizer of one to twelve characters a token, and must not carry a prompt over the model's end."""
PROBE_WORDS = (40, 140)
REACH = 3
"""How many times the longest known prompt may be foretold before a probe goes part of the way."""


@dataclass(slots=True)
class Sizer:
    """Words and the prompt tokens they became; the more is learnt, the longer the better.

    Tokens grow linearly with the words of our filler, after a chat template's constant.
    """

    _known: dict[int, int] = field(default_factory=dict)

    def learn(self, words: int, prompt_tokens: int) -> None:
        """Take in one prompt that the server has counted."""
        self._known[words] = prompt_tokens

    @property
    def can_foretell(self) -> bool:
        """Whether any length can be foretold, if not well."""
        return all(words in self._known for words in PROBE_WORDS)

    def probe_for(self, prompt_tokens: int) -> int | None:
        """Return the words of a prompt to learn first, None once this length can be foretold."""
        for words in PROBE_WORDS:
            if words not in self._known:
                return words
        reach_tokens = REACH * max(self._known.values())
        if prompt_tokens <= reach_tokens:
            return None
        words = self._words(reach_tokens)
        return words if words > max(self._known) else None

    def words_for(self, prompt_tokens: int) -> int:
        """Return the words of a prompt of nearly, and not more than, so many tokens.

        Needs every probe to have been learnt.
        """
        return self._words(prompt_tokens - SPARE_TOKENS - int(prompt_tokens * SPARE_SHARE))

    def _words(self, prompt_tokens: int) -> int:
        fewest, most = min(self._known), max(self._known)
        tokens_a_word = (self._known[most] - self._known[fewest]) / (most - fewest)
        room = prompt_tokens - self._known[fewest]
        return max(fewest + int(room / max(tokens_a_word, 0.1)), 1)
