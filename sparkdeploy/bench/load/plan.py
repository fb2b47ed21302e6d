"""What a load is made of: who comes when, with which prompts, and what must hold."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.load.arrivals import LARGEST_SEED, Law, Schedule, schedule
from sparkdeploy.bench.load.record import Asking
from sparkdeploy.bench.suites import Ask, Prompt, Route, asked, digest
from sparkdeploy.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sparkdeploy.bench.load.conversations import Conversations
    from sparkdeploy.bench.load.limits import Slo
    from sparkdeploy.bench.load.search import Search

AUTO = "auto"
MIX = "mix"
_MIXED_SUITES = ("five", "decode")


@dataclass(frozen=True, slots=True)
class Coming:
    """How requests come at any rate: by `duration_s`, or by their number in the steady state."""

    law: Law = Law.POISSON
    duration_s: float = 60.0
    requests: int | None = None
    ramp_s: float = 10.0
    seed: int = 0

    def at(self, rate_per_s: float) -> Schedule:
        count = self.requests or max(round(rate_per_s * self.duration_s), 1)
        return schedule(self.law, rate_per_s, count, seed=self.seed, ramp_s=self.ramp_s)


@dataclass(frozen=True, slots=True)
class Texts:
    """What is asked, in turn; `name` is what the record calls it."""

    name: str
    prompts: tuple[Prompt, ...]
    asking = Asking.OPEN_LOOP
    turns = 1

    def chain(self, index: int, salt: str) -> tuple[Ask, ...]:
        """Return what the client that comes as number `index` asks, one after the other."""
        prompt = self.prompts[index % len(self.prompts)]
        return (Ask(_salted(prompt, salt) if self.name == MIX else prompt),)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    coming: Coming
    texts: Texts | Conversations
    search: Search | None
    """Which rates; with None `rates` alone."""
    rates: tuple[float, ...]
    limits: Slo | None = None
    route: Route = Route.CHAT
    body: Mapping[str, Any] = field(default_factory=dict)
    """Added to each request's body."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def hash(self) -> str:
        """Of everything that is asked: figures of another are not compared."""
        content = [digest(self.texts.prompts), self.route, self.body, self.texts.asking]
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def temperature(self) -> float:
        told = self.body.get("temperature", 0.0)
        return float(told) if isinstance(told, int | float) else 0.0


def shipped_mix() -> Texts:
    """The prompts of `five` and `decode`; each request's begins in its own way."""
    return Texts(MIX, tuple(prompt for suite in _MIXED_SUITES for prompt in asked(suite)))


def _salted(prompt: Prompt, salt: str) -> Prompt:
    """Begin the first message in a way of its own, so that no prefix cache can help."""
    first, *others = prompt.messages
    content = f"Request {salt}.\n\n{first['content']}"
    return replace(prompt, messages=({**first, "content": content}, *others))


def salts(count: int, *, seed: int) -> list[str]:
    dice = random.Random(seed)  # noqa: S311 - a text, not a secret
    return [f"{dice.getrandbits(48):012x}" for _ in range(count)]


def parse_rates(text: str) -> tuple[float, ...]:
    """Read `auto` as nothing, `2` or `0.5,1,2` ascending; UsageError names what is wrong."""
    if text.strip() == AUTO:
        return ()
    return tuple(sorted({_rate(word.strip()) for word in text.split(",")}))


def _rate(word: str) -> float:
    try:
        rate_per_s = float(word) if word.replace(".", "", 1).isdecimal() else 0.0
    except ValueError:
        rate_per_s = 0.0
    if not 0 < rate_per_s <= 10_000:
        raise UsageError(
            f"--rate: {word!r} is no rate", hint="requests a second: 2, or 0.5,1,2, or auto"
        )
    return rate_per_s


def require_seed(seed: int) -> int:
    if not 0 <= seed <= LARGEST_SEED:
        raise UsageError(f"--seed: {seed} is not from 0 to {LARGEST_SEED}")
    return seed


def total_s(coming: Coming, rates: Sequence[float]) -> float:
    """Return how long requests come at all these rates; answers take longer."""
    return sum(coming.at(rate).moments_s[-1] for rate in rates)
