"""What the record of one run holds: what made it, what was asked, what came back.

docs/bench.md describes every field. All times are seconds of the client's monotonic clock, all
speeds tokens a second, all tokens are the server's own (`usage` and token ids), never chunks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sparkdeploy.server.metrics import Speculation

# No `from __future__ import annotations` and no TYPE_CHECKING here: pydantic reads the types.

SCHEMA_VERSION = 1
CellKey = tuple[str, int, int | None, int, str]
"""What makes cells of two runs comparable: prompt, streams, context, tokens, how it was asked."""


class FailureKind(StrEnum):
    """Why a request has no figures."""

    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    BROKEN_OFF = "broken off"
    """The stream ended before it said that it was done."""
    SERVER_ERROR = "server error"
    MALFORMED = "malformed"
    UNCOUNTED = "uncounted"
    """The server said neither `usage` nor token ids, and chunks are not tokens."""
    TIMEOUT = "timeout"


class Counting(StrEnum):
    """Where the number of tokens, and of tokens in each chunk, comes from."""

    TOKEN_IDS = "usage and token ids"  # noqa: S105 - no password
    USAGE_EACH = "usage in every chunk"
    USAGE = "usage at the end"
    """How many tokens the first chunk held is unknown: it is taken for an average one."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Of all values of one kind (linear interpolation between ranks); `count` says how many."""

    count: int
    p50: float
    p95: float
    p99: float
    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Waiting as a reader feels it, in seconds; None where nothing was measured."""

    ttft_s: Quantiles | None = None
    tpot_s: Quantiles | None = None
    """Time per output token of a request after its first arrival, one value a request."""
    gap_s: Quantiles | None = None
    """Between two arrivals of tokens. Tokens that arrive together have no gap between them."""
    end_to_end_s: Quantiles | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """Over rounds. `stdev` (sample) and Student's t interval of the mean need two or more."""

    count: int
    mean: float
    median: float
    stdev: float | None = None
    low95: float | None = None
    high95: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class RequestSample:
    """One request. A failed one has `failure`, one of round 0 is a warm-up: they count nowhere."""

    round: int
    stream: int
    prompt: str
    sent_s: float
    """Since the suite began: when the connection stood and the request went out."""
    duration_s: float
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    """Of the prompt, found in the prefix cache; None where the server does not say it."""
    completion_tokens: int = 0
    first_arrival_tokens: float = 0.0
    """Tokens that came with the first arrival; decoding counts from there."""
    arrivals: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    gap_s: Quantiles | None = None
    end_to_end_tok_s: float | None = None
    """completion_tokens / duration_s: prefill and HTTP included, as published tables count."""
    decode_tok_s: float | None = None
    """Tokens after the first arrival / time after the first arrival."""
    counting: Counting | None = None
    finish_reason: str = ""
    connect_s: float = 0.0
    """Connecting, TLS included; before `sent_s`, and in no other figure."""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class RoundResult:
    """All streams of one round together; failed requests are counted and left out."""

    round: int
    duration_s: float
    requests: int
    failures: int
    prompt_tokens: int
    completion_tokens: int
    end_to_end_tok_s: float | None
    decode_tok_s: float | None
    """All tokens after each request's first arrival / time in which any request was decoding."""
    stream_decode_tok_s: float | None
    """Mean over the requests of each one's own decode speed: what one user sees."""
    latency: Latency = Latency()


@dataclass(frozen=True, slots=True)
class ServerDelta:
    """What the server's own /metrics counted meanwhile; other clients' requests count too."""

    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    preemptions: int | None = None
    drafted: Speculation | None = None
    """None without speculation."""
    prefix_queries: int | None = None
    prefix_hits: int | None = None
    kv_usage_before: float | None = None
    kv_usage_after: float | None = None
    kv_usage_peak: float | None = None
    """The highest value seen while it ran, looked at once a second."""


@dataclass(frozen=True, slots=True)
class Range:
    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class MachineWatch:
    """The serving machine while it ran, looked at once a second; None where it does not tell."""

    readings: int
    sm_clock_mhz: Range | None = None
    temperature_c: Range | None = None
    power_w: Range | None = None
    memory_floor_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Requests sent on schedule, whoever still waits, as `vllm bench serve` counted them."""

    rate_per_s: float
    """As asked."""
    requests: int
    failures: int
    duration_s: float
    """From the first request to the last token of all."""
    completed_per_s: float
    completion_tok_s: float
    most_at_once: int | None = None
    limits_s: Mapping[str, float] = field(default_factory=dict)
    held: int = 0
    """Requests that held all limits; a failed one holds none."""
    goodput_per_s: float | None = None

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


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition of a suite: a prompt (or prompt class), a concurrency and a context."""

    prompt: str
    concurrency: int
    """0 in a load: as many as have come and still wait."""
    max_tokens: int
    context_tokens: int | None = None
    """Prompt length aimed at, in the model's tokens; None for a prompt taken as it is."""
    samples: tuple[RequestSample, ...] = ()
    rounds: tuple[RoundResult, ...] = ()
    latency: Latency = Latency()
    statistics: Mapping[str, Summary] = field(default_factory=dict)
    """Over rounds, by the name of a figure: those that could be taken."""
    server: ServerDelta | None = None
    machine: MachineWatch | None = None
    load: LoadResult | None = None

    @property
    def failures(self) -> int:
        """Failed requests, warm-ups left out."""
        return sum(item.failures for item in self.rounds)

    @property
    def key(self) -> CellKey:
        return self.prompt, self.concurrency, self.context_tokens, self.max_tokens, self.asked

    @property
    def asked(self) -> str:
        """How requests came, in a load."""
        return f"{self.load.rate_per_s:.4g}/s" if self.load is not None else ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a standard tool reported: `vllm bench serve` or llama-benchy, with their own names."""

    tool: str
    version: str
    command: tuple[str, ...]
    figures: Mapping[str, float] = field(default_factory=dict)
    report: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """One suite of a run."""

    name: str
    prompts: str
    """Hash of the prompts' text: figures of other prompts are not compared."""
    rounds: int
    warmups: int
    temperature: float = 0.0
    is_complete: bool = True
    """False when it was interrupted: what had been measured by then is here."""
    cells: tuple[Cell, ...] = ()
    tools: tuple[ToolResult, ...] = ()
    notes: tuple[str, ...] = ()
    sustained: SustainedRate | None = None

    @property
    def loads(self) -> tuple[LoadResult, ...]:
        return tuple(cell.load for cell in self.cells if cell.load is not None)


@dataclass(frozen=True, slots=True)
class RecipeOrigin:
    """The recipe that was deployed, with everything it inherits filled in."""

    name: str
    fingerprint: str
    """sha256 of `values` as sorted JSON: two runs with equal ones had the same recipe."""
    title: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    floor_tok_s: float | None = None
    """What `--gate` holds suite five against; the recipe's `expect.end_to_end_tok_s`."""
    floor_source: str = ""


@dataclass(frozen=True, slots=True)
class ImageOrigin:
    """The image the container runs."""

    reference: str
    image_id: str
    fingerprint: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointOrigin:
    """The weights that were mounted."""

    source: str
    revision: str | None = None
    manifest_fingerprint: str | None = None
    """The fingerprint in the prepared checkpoint's sparkdeploy.json; None for stock weights."""
    treatment: Mapping[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineOrigin:
    """The server as its own log and answers describe it."""

    version: str | None = None
    flags: str = ""
    """`non-default args` of the live log, in the engine's own words."""
    attention_backend: str | None = None
    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    fp8_layers: int | None = None
    lm_head: str | None = None


@dataclass(frozen=True, slots=True)
class MachineOrigin:
    """The machine that served. For a bare URL nothing is known of it."""

    product: str = ""
    architecture: str = ""
    kernel: str = ""
    cpu_count: int | None = None
    memory_bytes: int | None = None
    gpu: str | None = None
    driver: str | None = None
    docker: str | None = None


@dataclass(frozen=True, slots=True)
class ClientOrigin:
    """What asked and counted."""

    sparkdeploy: str
    python: str
    machine: str = ""
    """`here` when it ran on the machine that served, otherwise how the server was reached."""


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """Everything that made a run."""

    url: str
    model: str
    client: ClientOrigin
    deployment: str | None = None
    recipe: RecipeOrigin | None = None
    images: tuple[ImageOrigin, ...] = ()
    checkpoint: CheckpointOrigin | None = None
    engine: EngineOrigin | None = None
    machine: MachineOrigin | None = None


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    """Unique and sortable: `20261121T085134Z-v2-five`; the file's name without `.json`."""
    label: str
    """What a person calls it: `--save LABEL`, else the recipe's or the model's name."""
    started_at: str
    finished_at: str
    origin: RunOrigin
    suites: tuple[SuiteResult, ...]
    schema: int = SCHEMA_VERSION

    def suite(self, name: str) -> SuiteResult | None:
        return next((suite for suite in self.suites if suite.name == name), None)
