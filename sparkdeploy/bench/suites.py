"""The suites: which conditions, in which order. Deciding only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from sparkdeploy.bench import prompts
from sparkdeploy.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sparkdeploy.bench.prompts import Prompt

WARMUPS = 1
SWEEP_CONCURRENCY = (1, 2, 4, 8, 16, 32)
SWEEP_CONTEXT = tuple(1024 * 2**power for power in range(9))
"""1K to 256K."""
SWEEP_TOKENS = 128
SWEEP_CLASS = "context"


class SuiteName(StrEnum):
    """What `--suite` takes."""

    FIVE = "five"
    DECODE = "decode"
    SWEEP = "sweep"
    STANDARD = "standard"


@dataclass(frozen=True, slots=True)
class Condition:
    prompt: str
    max_tokens: int
    concurrency: int = 1
    context_tokens: int | None = None
    """Prompt and answer together, for a prompt that is made to measure."""


@dataclass(frozen=True, slots=True)
class Turn:
    condition: Condition
    round: int
    """0 is the warm-up."""


@dataclass(frozen=True, slots=True)
class Suite:
    name: SuiteName
    prompts: str
    """Hash of what is asked."""
    rounds: int
    turns: tuple[Turn, ...]
    notes: tuple[str, ...] = ()


def fixed_suite(name: SuiteName, asked: Sequence[Prompt], rounds: int) -> Suite:
    """Return a suite of given prompts, one stream each.

    Rounds go over all prompts in turn, so that a machine that warms up slows all alike.
    """
    conditions = [Condition(item.name, item.max_tokens) for item in asked]
    turns = tuple(
        Turn(condition, number) for number in range(rounds + WARMUPS) for condition in conditions
    )
    return Suite(name, prompts.digest(tuple(asked)), rounds, turns)


def sweep_suite(
    rounds: int,
    *,
    concurrency: Sequence[int] = SWEEP_CONCURRENCY,
    context: Sequence[int] = SWEEP_CONTEXT,
    max_model_len: int | None = None,
) -> Suite:
    """Return concurrency at the shortest context, then context with one stream.

    A condition is finished before the next one, so that an interrupted sweep holds whole ones.
    Contexts the model does not serve are left out with a note; UsageError when none is left.
    """
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
    lengths = [Condition(SWEEP_CLASS, SWEEP_TOKENS, 1, length) for length in fitting]
    turns = tuple(
        Turn(condition, number)
        for condition in dict.fromkeys((*streams, *lengths))
        for number in range(rounds + WARMUPS)
    )
    question = prompts.context_prompt(64, seed=0, max_tokens=SWEEP_TOKENS)
    return Suite(SuiteName.SWEEP, prompts.digest((question,)), rounds, turns, notes=notes)


@dataclass(slots=True)
class Forecast:
    """How long the rest takes, from what has been measured so far."""

    prompt_s: float = 0.0
    prompt_tokens: int = 0
    decode_s: float = 0.0
    decode_tokens: int = 0

    def learn(self, *, prompt_tokens: int, prompt_s: float, tokens: int, decode_s: float) -> None:
        self.prompt_tokens += prompt_tokens
        self.prompt_s += prompt_s
        self.decode_tokens += tokens
        self.decode_s += decode_s

    def remaining_s(self, turns: Sequence[Turn]) -> float | None:
        """None before anything was learnt."""
        if not self.prompt_tokens or not self.decode_tokens:
            return None
        return sum(self._turn_s(turn.condition) for turn in turns)

    def _turn_s(self, condition: Condition) -> float:
        prompt_tokens = (condition.context_tokens or 0) * condition.concurrency
        return (
            prompt_tokens * self.prompt_s / self.prompt_tokens
            + condition.max_tokens * self.decode_s / self.decode_tokens
        )


def parse_suites(names: Sequence[str]) -> tuple[SuiteName, ...]:
    """Read `five` or `five,decode`, each name once; UsageError names what is no suite."""
    words = [word.strip() for name in names for word in name.split(",")]
    known = [suite.value for suite in SuiteName]
    for word in words:
        if word not in known:
            raise UsageError(f"{word!r} is no suite", hint=f"one of {', '.join(known)}")
    return tuple(dict.fromkeys(SuiteName(word) for word in words))


def parse_counts(text: str, what: str) -> tuple[int, ...]:
    """Read `1,2,4` or `1K,16K,256K` (K is 1024); UsageError names what is wrong."""
    counts = []
    for word in text.split(","):
        number = word.strip().upper()
        scale = 1024 if number.endswith("K") else 1
        number = number.removesuffix("K")
        if not number.isdigit() or int(number) == 0:
            raise UsageError(f"{what}: {word!r} is no count", hint="such as 1,2,4 or 1K,16K,64K")
        counts.append(int(number) * scale)
    return tuple(counts)
