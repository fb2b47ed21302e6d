"""What the record says of load, beside the figures that every cell has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

# As in bench/record.py, pydantic reads the types.


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of all values of one kind (linear interpolation between ranks); `count` says how many."""

    count: int
    p50: float
    p95: float
    p99: float
    mean: float
    max: float


class Asking(StrEnum):
    """Who decides when a request is sent. Figures of one do not compare with those of another."""

    CLOSED_LOOP = "closed loop"
    """Each round waits for the one before: as many requests at once as were asked for."""
    OPEN_LOOP = "open loop"
    """Requests come at their moments, whoever still waits."""
    CONVERSATIONS = "conversations in an open loop"
    """Conversations come at their moments; their turns wait for one another."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """All requests of one turn of conversations, in the steady state."""

    turn: int
    requests: int
    failures: int
    prompt_tokens: float | None
    """Mean of the requests that succeeded, as all that follows."""
    cached_tokens: float | None = None
    """Of the prompt, found in the prefix cache; None where the server does not say it."""
    ttft_s: Quantiles | None = None
    tpot_s: Quantiles | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Requests at one rate. All figures are of the steady state: the ramp is in none of them."""

    arrivals: str
    rate_per_s: float
    """As asked, in requests (or conversations) a second."""
    seed: int
    ramp_s: float
    """Its requests are round 0 of the samples."""
    window_s: float
    """From the end of the ramp to the last token of all, or the last failure."""
    requests: int
    failures: int
    completed_per_s: float
    """Requests that succeeded / `window_s`."""
    completion_tok_s: float
    prompt_tok_s: float
    """Of the requests that succeeded / `window_s`."""
    most_in_flight: int
    limits_s: Mapping[str, float] = field(default_factory=dict)
    held: int = 0
    """Requests that held all limits; a failed one holds none."""
    goodput_per_s: float | None = None
    late_requests: int = 0
    """Those that the client itself began more than LATE_S after their moment, ramp included."""
    latest_s: float = 0.0
    turns: tuple[TurnResult, ...] = ()
    unsent: int = 0
    """Turns that were not sent because one before had failed, ramp included."""

    @property
    def held_share(self) -> float:
        return self.held / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True)
class SustainedRate:
    """The highest rate tried at which the wanted share of requests held the limits."""

    rate_per_s: float | None
    """None when they were held at no rate that was tried."""
    held: int
    requests: int
    wanted_share: float
    fails_at_per_s: float | None
    """The lowest rate that failed; None when none did, so that more may be possible."""
