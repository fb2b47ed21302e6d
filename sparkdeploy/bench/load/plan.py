"""What a load is made of: when requests are sent, with which prompts, and within which limits."""

import hashlib
import json
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate
from typing import Any

from sparkdeploy.bench.files import shipped
from sparkdeploy.bench.load.record import Asking, LoadResult, SustainedRate
from sparkdeploy.bench.record import RequestSample
from sparkdeploy.bench.suites import Prompt, asked, digest, filler
from sparkdeploy.errors import UsageError

AUTO = "auto"
MIX = "mix"
TICKET = "Ticket {}. "
"""How a conversation's task begins; without a number where what is asked is hashed."""
_MIXED_SUITES = ("five", "decode")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|min)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "min": 60.0}
_LIMITED: Mapping[str, Callable[[RequestSample], float | None]] = {
    "ttft": lambda sample: sample.ttft_s,
    "tpot": lambda sample: sample.tpot_s,
    "e2e": lambda sample: sample.duration_s,
}


class Law(StrEnum):
    POISSON = "poisson"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Seconds since the beginning, ascending; requests before `steady_s` are the ramp's."""

    moments_s: tuple[float, ...]
    steady_s: float

    def is_steady(self, index: int) -> bool:
        return self.moments_s[index] >= self.steady_s


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests come at any rate: by `duration_s`, or by their number in the steady state."""

    law: Law = Law.POISSON
    duration_s: float = 60.0
    requests: int | None = None
    ramp_s: float = 10.0
    seed: int = 0

    def at(self, rate_per_s: float) -> Schedule:
        """Return moments for the requests after the ramp, and half as dense ones in it.

        During the ramp the rate rises evenly from nothing to `rate_per_s`. For Poisson's law that
        is its time stretched: what was expected until a moment stays what it was.
        """
        count = self.requests or max(round(rate_per_s * self.duration_s), 1)
        total = count + round(rate_per_s * self.ramp_s / 2)
        moments = steady_moments(self.law, rate_per_s, total, seed=self.seed)
        return Schedule(tuple(_stretched(it, self.ramp_s) for it in moments), self.ramp_s)


def steady_moments(law: Law, rate_per_s: float, count: int, *, seed: int) -> list[float]:
    """Return `count` moments at one rate, as `vllm bench serve` scales them to its end."""
    if law is Law.CONSTANT:
        return [number / rate_per_s for number in range(1, count + 1)]
    dice = random.Random(seed)  # noqa: S311 - moments, not a secret
    moments = list(accumulate(dice.expovariate(rate_per_s) for _ in range(count)))
    scale = count / rate_per_s / moments[-1]
    return [moment * scale for moment in moments]


def _stretched(moment_s: float, ramp_s: float) -> float:
    """Return when what came by `moment_s` at the full rate comes after a ramp."""
    if moment_s < ramp_s / 2:
        return math.sqrt(2 * ramp_s * moment_s)
    return moment_s + ramp_s / 2


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds by name: ttft, tpot, e2e."""

    seconds: Mapping[str, float]

    def holds(self, sample: RequestSample) -> bool:
        """Return whether the request succeeded within every limit, at a limit included."""
        if sample.failure is not None:
            return False
        return all((_LIMITED[name](sample) or 0.0) <= limit for name, limit in self.seconds.items())

    def __str__(self) -> str:
        return ", ".join(f"{name} {span_text(limit)}" for name, limit in self.seconds.items())


def parse_limits(text: str) -> Slo:
    """Read `ttft=2s,tpot=100ms`; UsageError names what is wrong."""
    seconds: dict[str, float] = {}
    for part in text.split(","):
        name, equals, span = (word.strip() for word in part.partition("="))
        if name not in _LIMITED or not equals:
            raise UsageError(
                f"--slo: not a limit: {part.strip()!r}",
                hint=f"such as ttft=2s,tpot=100ms; names are {', '.join(_LIMITED)}",
            )
        if name in seconds:
            raise UsageError(f"--slo: {name} is limited twice")
        seconds[name] = parse_span(span, f"--slo: {name}")
    return Slo(seconds)


def parse_span(text: str, what: str) -> float:
    """Read `100ms`, `2.5s` or `10min` in seconds, more than nothing; UsageError otherwise."""
    found = _SPAN.fullmatch(text.strip())
    if found is None or float(found[1]) == 0:
        raise UsageError(f"{what}: not a duration: {text!r}", hint="such as 100ms, 2.5s or 10min")
    return float(found[1]) * _UNITS_S[found[2]]


def span_text(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


@dataclass(frozen=True, slots=True)
class Texts:
    """What is asked: requests that stand alone, the prompts in turn, or an agent's conversations.

    No prefix cache may know what a request begins with; of conversations only the task begins
    differently, for an agent's instructions and tools are always the same.
    """

    name: str
    prompts: tuple[Prompt, ...]
    asking: Asking = Asking.OPEN_LOOP
    body: Mapping[str, Any] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        return 1 if self.asking is Asking.OPEN_LOOP else len(self.prompts)

    def chains(self, count: int, seed: int) -> list[tuple[Prompt, ...]]:
        """Return the requests of `count` arrivals, those of one sent one after the other."""
        dice = random.Random(seed)  # noqa: S311 - a text, not a secret
        return [self._chain(index, f"{dice.getrandbits(48):012x}") for index in range(count)]

    def _chain(self, index: int, salt: str) -> tuple[Prompt, ...]:
        if self.turns > 1:
            return tuple(_salted(it, 1, TICKET.format(salt)) for it in self.prompts)
        return (_salted(self.prompts[index % len(self.prompts)], 0, f"Request {salt}.\n\n"),)


def _salted(prompt: Prompt, at: int, words: str) -> Prompt:
    """Return the prompt with `words` before what one of its messages says."""
    messages = [*prompt.messages]
    unsalted = messages[at]["content"].removeprefix(TICKET.format(""))
    messages[at] = {**messages[at], "content": words + unsalted}
    return replace(prompt, messages=tuple(messages))


def shipped_mix() -> Texts:
    return Texts(MIX, tuple(prompt for suite in _MIXED_SUITES for prompt in asked(suite)))


def conversations(turns: int) -> Texts:
    """Return an agent's conversation of so many requests: a context that grows by tool calls.

    What is fed back as the model's own words is ours, whatever it answered: so every server gets
    the same prompts. No tool is called, so that recipes without a parser for calls are asked the
    same.
    """
    content = shipped("conversation.yaml")
    tools = tuple({"type": "function", "function": tool} for tool in content["tools"])
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": content["system"]},
        {"role": "user", "content": TICKET.format("") + content["task"]},
    ]
    prompts = []
    for turn in range(1, turns + 1):
        prompts.append(Prompt(f"turn {turn}", tuple(messages), content["max_tokens"], tools))
        step = content["steps"][(turn - 1) % len(content["steps"])]
        function = {"name": step["tool"], "arguments": json.dumps(step["arguments"])}
        call = {"id": f"call-{turn}", "type": "function", "function": function}
        result = f"{step['result']}\n{filler(step['result_words'], seed=turn)}"
        messages += [
            {"role": "assistant", "content": step["says"], "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": result},
        ]
    name, body = f"agent-{turns}-turns", {"tool_choice": "none"}
    return Texts(name, tuple(prompts), Asking.CONVERSATIONS, body)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    arrivals: Arrivals
    texts: Texts
    rates: tuple[float, ...]
    search: "Search | None" = None
    """Which rates; with None `rates` alone."""
    limits: Slo | None = None

    @property
    def hash(self) -> str:
        """A hash of everything that is asked: figures of another are not compared."""
        content = [digest(self.texts.prompts), "chat", self.texts.body, self.texts.asking]
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def load_plan(
    arrivals: Arrivals, rate: str, *, slo: str | None, share: float, turns: int | None
) -> LoadPlan:
    rates = parse_rates(rate)
    limits = parse_limits(slo) if slo is not None else None
    if not rates and limits is None:
        raise UsageError(
            f"--rate {AUTO} looks for the highest rate within limits, and --slo is missing",
            hint="such as --slo ttft=2s,tpot=100ms",
        )
    # One rate with limits is judged and not searched from.
    is_searched = limits is not None and len(rates) != 1
    texts = conversations(turns) if turns is not None else shipped_mix()
    return LoadPlan(arrivals, texts, rates, Search(rates, share) if is_searched else None, limits)


def parse_rates(text: str) -> tuple[float, ...]:
    """Read `auto` as nothing, `2` or `0.5,1,2` ascending; UsageError names what is wrong."""
    if text.strip() == AUTO:
        return ()
    return tuple(sorted({_rate(word.strip()) for word in text.split(",")}))


def _rate(word: str) -> float:
    rate_per_s = float(word) if word.replace(".", "", 1).isdecimal() else 0.0
    if not 0 < rate_per_s <= 10_000:
        raise UsageError(
            f"--rate: not a rate: {word!r}", hint="requests a second: 2, or 0.5,1,2, or auto"
        )
    return rate_per_s


FIRST_PER_S = 1.0
LEAST_PER_S = 1 / 64
MOST_TRIES = 12
CLOSE = 1.1
"""A failing rate this close above a holding one ends the search."""


@dataclass(frozen=True, slots=True)
class Search:
    """Rates to be tried as given, then a bisection between the last that held and the next."""

    rates: tuple[float, ...]
    """Ascending; empty to look for them: doubled while they hold, halved while they do not."""
    wanted_share: float

    def next_rate(self, tries: Sequence[LoadResult]) -> float | None:
        """Return the next rate to try; None when enough is known."""
        tried = {item.rate_per_s for item in tries}
        left = [rate for rate in self.rates if rate not in tried]
        if left:
            return left[0]
        if not tries:
            return FIRST_PER_S
        if len(tries) >= MOST_TRIES + len(self.rates):
            return None
        holding, failing = self._bounds(tries)
        if holding is not None and failing is not None:
            return (holding * failing) ** 0.5 if failing > holding * CLOSE else None
        wider = failing / 2 if failing is not None else (holding or 0.0) * 2
        return wider if not self.rates and wider >= LEAST_PER_S else None

    def found(self, tries: Sequence[LoadResult]) -> SustainedRate:
        """Return the highest rate below the first that failed; None in it where none held."""
        holding, failing = self._bounds(tries)
        best = next((item for item in tries if item.rate_per_s == holding), None)
        return SustainedRate(
            rate_per_s=holding,
            held=best.held if best else 0,
            requests=best.requests if best else 0,
            wanted_share=self.wanted_share,
            fails_at_per_s=failing,
        )

    def _bounds(self, tries: Sequence[LoadResult]) -> tuple[float | None, float | None]:
        """A rate that holds above one that failed is luck: it is not believed."""
        failed = [item.rate_per_s for item in tries if item.held_share < self.wanted_share]
        failing = min(failed, default=None)
        held = [
            item.rate_per_s
            for item in tries
            if item.held_share >= self.wanted_share
            and (failing is None or item.rate_per_s < failing)
        ]
        return max(held, default=None), failing
