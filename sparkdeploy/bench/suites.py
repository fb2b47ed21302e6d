"""What is asked: the suites' conditions and their order, the prompts, and a request's body."""

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from sparkdeploy.bench.files import shipped
from sparkdeploy.errors import BenchError, UsageError

WARMUPS = 1
AGENTS_AT_ONCE = (1, 4)
SWEEP_CONCURRENCY = (1, 2, 4, 8, 16, 32)
SWEEP_CONTEXT = tuple(1024 * 2**power for power in range(9))
SWEEP_TOKENS = 128
SWEEP_CLASS = "context"


class SuiteName(StrEnum):
    FIVE = "five"
    DECODE = "decode"
    SWEEP = "sweep"
    AGENTS = "agents"
    STANDARD = "standard"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class Prompt:
    name: str
    messages: tuple[Mapping[str, Any], ...]
    max_tokens: int
    tools: tuple[Mapping[str, Any], ...] = ()
    is_exact: bool = False
    """Whether the answer has max_tokens tokens; else the model may end it earlier."""
    context_tokens: int | None = None
    """Prompt and answer together, for a prompt that is made to measure."""


def asked(suite: str) -> tuple[Prompt, ...]:
    if suite == SuiteName.AGENTS:
        return conversation("")
    return tuple(
        Prompt(item["name"], tuple(item["messages"]), item["max_tokens"])
        for item in shipped("prompts.yaml").get(suite, ())
    )


def conversation(ticket: str) -> tuple[Prompt, ...]:
    """Return the turns of an agent's work: each prompt goes on from the one before by a tool call.

    What is fed back as the model's own words is ours, so that every server gets the same prompts. A
    prefix cache knows the instructions and tools; of the task it knows what has the same ticket.
    """
    content = shipped("agents.yaml")
    tools = tuple({"type": "function", "function": tool} for tool in content["tools"])
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": content["system"]},
        {"role": "user", "content": f"Ticket {ticket}. {content['task']}"},
    ]
    prompts = []
    for turn, step in enumerate(content["steps"], 1):
        prompts.append(Prompt(f"turn {turn}", tuple(messages), content["max_tokens"], tools))
        function = {"name": step["tool"], "arguments": json.dumps(step["arguments"])}
        call = {"id": f"call-{turn}", "type": "function", "function": function}
        result = f"{step['result']}\n{filler(step['result_words'], seed=turn)}"
        messages += [
            {"role": "assistant", "content": step["says"], "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": result},
        ]
    return tuple(prompts)


_SUBJECTS = ("pump", "valve", "sensor", "turbine", "ledger", "antenna", "furnace", "bridge")
_VERBS = ("records", "follows", "delays", "repeats", "balances", "inspects", "feeds", "replaces")
_PLACES = ("north hall", "lower deck", "second shift", "test bench", "old quarry", "control room")


def filler(words: int, *, seed: int) -> str:
    """Return a made-up report of `words` words, whose first sentence differs between seeds."""
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


def context_prompt(
    words: int, *, seed: int, max_tokens: int, context_tokens: int | None = None
) -> Prompt:
    content = f"{filler(words, seed=seed)}\n\nSummarise the report above in detail."
    message = {"role": "user", "content": content}
    return Prompt("context", (message,), max_tokens, (), True, context_tokens)


def digest(prompts: tuple[Prompt, ...]) -> str:
    content = [
        (item.name, item.messages, item.max_tokens, *((item.tools,) if item.tools else ()))
        for item in prompts
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


TOKEN_IDS_UP_TO = 8192
"""Prompts longer than this are asked without token ids: vLLM then returns the prompt's ids too,
a megabyte of JSON before the first token at 256K. `usage` in every chunk counts as well."""


class UsageSupport(Enum):
    """What of the counting a server lets itself be asked for, best first."""

    FULL = "token ids, and usage in every chunk"
    USAGE = "usage at the end"
    PLAIN = "nothing"


def request_body(prompt: Prompt, *, model: str, support: UsageSupport) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [dict(message) for message in prompt.messages],
        "max_tokens": prompt.max_tokens,
        "temperature": 0.0,
        "stream": True,
    }
    if prompt.tools:
        # None is called, so that recipes without a parser for calls are asked the same.
        body |= {"tools": list(prompt.tools), "tool_choice": "none"}
    if support is not UsageSupport.PLAIN:
        body["stream_options"] = {"include_usage": True}
    if support is UsageSupport.FULL:
        body["stream_options"]["continuous_usage_stats"] = True
        if (prompt.context_tokens or 0) <= TOKEN_IDS_UP_TO:
            body["return_token_ids"] = True
        if prompt.is_exact:
            body |= {"ignore_eos": True, "min_tokens": prompt.max_tokens}
    return body


SPARE_TOKENS = 32
SPARE_SHARE = 0.02
"""Words differ in tokens: over 200 prompts of 3K tokens, 0.7 % was the standard deviation with a
tokenizer of one to twelve characters a token, and must not carry a prompt over the model's end."""
FEW_PIECES = 10
MOST_PIECES = 2000


@dataclass(slots=True)
class TokenEstimator:
    """How many pieces, words or lines, make so many tokens: they are linear after a template's."""

    count: Callable[[int], int]
    """Tokens of a prompt of so many pieces; BenchError where the server does not take it."""
    most_a_piece: int
    _known: dict[int, int] = field(default_factory=dict)

    def pieces_for(self, tokens: int) -> int:
        """Return the pieces of a prompt of nearly, and at most, so many tokens."""
        for pieces in (
            FEW_PIECES,
            max(2 * FEW_PIECES, min(tokens // self.most_a_piece, MOST_PIECES)),
        ):
            try:
                self._known[pieces] = self._known.get(pieces) or self.count(pieces)
            except BenchError:
                # What the server does not take shorter it does not take: the cell will say so.
                if len(self._known) < 2:
                    raise
        few, many = min(self._known), max(self._known)
        a_piece = (self._known[many] - self._known[few]) / (many - few)
        room = tokens * (1 - SPARE_SHARE) - SPARE_TOKENS - self._known[few]
        return max(few + int(room / max(a_piece, 0.1)), 1)


@dataclass(frozen=True, slots=True)
class Condition:
    prompt: str
    max_tokens: int
    concurrency: int = 1
    context_tokens: int | None = None

    @property
    def weight(self) -> float:
        """How long it takes beside others: a token is read twenty times as fast as written."""
        return self.max_tokens + (self.context_tokens or 0) * self.concurrency / 20


@dataclass(frozen=True, slots=True)
class Turn:
    condition: Condition
    round: int


@dataclass(frozen=True, slots=True)
class Suite:
    name: SuiteName
    prompts: str
    rounds: int
    turns: tuple[Turn, ...]
    notes: tuple[str, ...] = ()

    def left_share(self, index: int) -> float:
        """Return how long what comes after a turn takes, beside all that was taken with it."""
        weights = [turn.condition.weight for turn in self.turns]
        return sum(weights[index + 1 :]) / sum(weights[: index + 1])


def fixed_suite(name: SuiteName, rounds: int, count: int | None = None) -> Suite:
    """Go over all prompts in turn; of the first `count` alone the hash is another one."""
    prompts = asked(name)[:count]
    turns = tuple(
        Turn(Condition(item.name, item.max_tokens, streams), number)
        for streams in (AGENTS_AT_ONCE if name is SuiteName.AGENTS else (1,))
        for number in range(rounds + WARMUPS)
        for item in prompts
    )
    return Suite(name, digest(prompts), rounds, turns)


def sweep_suite(
    rounds: int,
    *,
    concurrency: Sequence[int] = SWEEP_CONCURRENCY,
    context: Sequence[int] = SWEEP_CONTEXT,
    max_model_len: int | None = None,
) -> Suite:
    """A condition is finished before the next, so that an interrupted sweep holds whole ones."""
    fitting = [length for length in sorted(set(context)) if length <= (max_model_len or length)]
    notes = tuple(
        f"context {length} left out: the model serves up to {max_model_len} tokens"
        for length in sorted(set(context))
        if length not in fitting
    )
    if not fitting or fitting[0] <= SWEEP_TOKENS:
        raise UsageError(
            f"no context of {', '.join(map(str, context))} tokens can be measured: the model "
            f"serves up to {max_model_len or 'an unknown number of'} tokens, and an answer takes "
            f"{SWEEP_TOKENS}"
        )
    streams = [
        Condition(SWEEP_CLASS, SWEEP_TOKENS, count, fitting[0])
        for count in sorted(set(concurrency))
    ]
    # Nothing is measured that was not asked: the fewest streams that were.
    fewest = min(concurrency)
    lengths = [Condition(SWEEP_CLASS, SWEEP_TOKENS, fewest, length) for length in fitting]
    turns = tuple(
        Turn(condition, number)
        for condition in dict.fromkeys((*streams, *lengths))
        for number in range(rounds + WARMUPS)
    )
    question = context_prompt(64, seed=0, max_tokens=SWEEP_TOKENS)
    return Suite(SuiteName.SWEEP, digest((question,)), rounds, turns, notes=notes)


def parse_suites(names: Sequence[str]) -> tuple[SuiteName, ...]:
    """Read `five` or `five,decode`, each name once; UsageError names what is no suite."""
    words = [word.strip() for name in names for word in name.split(",")]
    known = [suite.value for suite in SuiteName if suite is not SuiteName.LOAD]
    for word in words:
        if word == SuiteName.LOAD:
            raise UsageError("a load is taken alone", hint="`sparkdeploy bench load --help`")
        if word not in known:
            raise UsageError(f"unknown suite {word!r}", hint=f"one of {', '.join(known)}")
    return tuple(dict.fromkeys(SuiteName(word) for word in words))


def parse_counts(text: str, what: str) -> tuple[int, ...]:
    """Read `1,2,4` or `1K,16K,256K` (K is 1024); UsageError names what is wrong."""
    counts = []
    for word in text.split(","):
        number = word.strip().upper()
        scale = 1024 if number.endswith("K") else 1
        number = number.removesuffix("K")
        if not number.isdecimal() or int(number) < 1:
            raise UsageError(
                f"{what}: not a whole number: {word!r}", hint="such as 1,2,4 or 1K,16K,64K"
            )
        counts.append(int(number) * scale)
    return tuple(counts)
