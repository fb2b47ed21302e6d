"""Records made by hand, for whatever reads or draws them. Nothing in them was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sparkdeploy.bench.campaign.folder import CampaignBundle, SharedRecipe
from sparkdeploy.bench.figures import Estimate
from sparkdeploy.bench.quality.capture import served_of
from sparkdeploy.bench.quality.comparison import QualityFigures, QualityResult
from sparkdeploy.bench.record import (
    Cell,
    CheckpointOrigin,
    ClientOrigin,
    Counting,
    EngineOrigin,
    Failure,
    FailureKind,
    ImageOrigin,
    Latency,
    LoadResult,
    MachineOrigin,
    MachineWatch,
    Quantiles,
    Range,
    RecipeOrigin,
    RequestSample,
    RoundResult,
    Run,
    RunOrigin,
    ServerDelta,
    SuiteResult,
    Summary,
    SustainedRate,
    ToolResult,
)
from sparkdeploy.server.metrics import Speculation

PROMPTS = {"qa": 256, "code": 512, "json": 1024, "math": 64, "long_code": 2048}
WOBBLE = (0.99, 1.0, 1.01)


def quantiles(middle: float) -> Quantiles:
    return Quantiles(30, middle, middle * 1.2, middle * 1.3, middle * 1.05, middle * 1.4)


def latency(ttft_s: float, speed: float) -> Latency:
    return Latency(
        ttft_s=quantiles(ttft_s),
        tpot_s=quantiles(1 / speed),
        gap_s=quantiles(2.5 / speed),
        end_to_end_s=quantiles(ttft_s + 256 / speed),
    )


def summary(mean: float) -> Summary:
    return Summary(3, mean, mean, mean * 0.01, mean * 0.975, mean * 1.025)


def cell(
    prompt: str,
    *,
    speed: float,
    max_tokens: int,
    concurrency: int = 1,
    context_tokens: int | None = None,
) -> Cell:
    """One condition; `speed` is a single stream's decode tok/s, and one request failed."""
    prompt_tokens = context_tokens or 40
    ttft_s = 0.1 + prompt_tokens / 2000
    rounds = tuple(
        RoundResult(
            round=number,
            duration_s=ttft_s + max_tokens / (speed * wobble),
            requests=concurrency,
            failures=1 if concurrency > 1 and number == 1 else 0,
            prompt_tokens=prompt_tokens * concurrency,
            completion_tokens=max_tokens * concurrency,
            end_to_end_tok_s=0.96 * speed * wobble * concurrency,
            decode_tok_s=speed * wobble * concurrency,
            stream_decode_tok_s=speed * wobble,
            latency=latency(ttft_s, speed * wobble),
        )
        for number, wobble in enumerate(WOBBLE, 1)
    )
    samples = tuple(
        _sample(prompt, number, stream, speed=speed, max_tokens=max_tokens, ttft_s=ttft_s)
        for number in range(4)
        for stream in range(concurrency)
    )
    if concurrency > 1:
        broken = RequestSample(
            1, concurrency - 1, prompt, 0.0, 1.5, failure=Failure(FailureKind.BROKEN_OFF, "EOF")
        )
        samples = (*samples[: 2 * concurrency - 1], broken, *samples[2 * concurrency :])
    return Cell(
        prompt=prompt,
        concurrency=concurrency,
        max_tokens=max_tokens,
        context_tokens=context_tokens,
        samples=samples,
        rounds=rounds,
        latency=latency(ttft_s, speed),
        statistics={
            "end_to_end_tok_s": summary(0.96 * speed * concurrency),
            "decode_tok_s": summary(speed * concurrency),
            "stream_decode_tok_s": summary(speed),
            "ttft_p50_s": summary(ttft_s),
            "ttft_p95_s": summary(ttft_s * 1.2),
            "tpot_p50_s": summary(1 / speed),
            "gap_p50_s": summary(2.5 / speed),
            "gap_p99_s": summary(3.2 / speed),
        },
        server=ServerDelta(
            prompt_tokens=3 * prompt_tokens * concurrency,
            generation_tokens=3 * max_tokens * concurrency,
            preemptions=0,
            drafted=Speculation(1000, 2000, 1500, (900, 600)),
            kv_usage_before=0.0,
            kv_usage_after=0.0,
            kv_usage_peak=min(0.02 * concurrency + prompt_tokens / 1e6, 1.0),
        ),
        machine=MachineWatch(
            readings=20,
            sm_clock_mhz=Range(2405.0, 2411.0, 2411.0),
            temperature_c=Range(58.0, 66.0, 71.0),
            power_w=Range(31.0, 44.0, 48.0),
            memory_floor_bytes=11 * 2**30,
        ),
    )


def sample_run(recipe: str = "v2", *, speed: float = 51.0, run_id: str | None = None) -> Run:
    """A run with every suite; `speed` is its decode tok/s for one stream."""
    return Run(
        run_id=run_id or f"20261121T090000Z-{recipe}",
        label=recipe,
        started_at="2026-11-21T09:00:00Z",
        finished_at="2026-11-21T09:31:07Z",
        origin=origin(recipe, speed),
        suites=(five(speed), decode(speed), sweep(speed), standard(speed)),
    )


def loaded_run(recipe: str, *, speed: float) -> Run:
    """`sample_run` with an agent's turns, and a load of three rates, the highest too much."""
    run = sample_run(recipe, speed=speed)
    rates = (0.25, 0.5, 1.0)
    cells = tuple(_loaded(run.suites[0].cells[0], rate, speed) for rate in rates)
    sustained = SustainedRate(0.5, 57, 60, 0.95, 1.0)
    suite = SuiteResult("load", "1a2b", rounds=1, warmups=1, cells=cells, sustained=sustained)
    return replace(run, suites=(*run.suites, suite, agents(speed)))


def _loaded(of: Cell, rate: float, speed: float) -> Cell:
    held = 60 if rate < 1 else 31
    load = LoadResult(
        rate_per_s=rate, requests=60, failures=0, duration_s=60 / rate, completed_per_s=rate,
        completion_tok_s=rate * 200, most_at_once=9, limits_s={"ttft": 2.0}, held=held,
        goodput_per_s=rate * held / 60,
    )  # fmt: skip
    waits = replace(of.latency, ttft_s=quantiles(20 * rate / speed))
    return replace(of, prompt="mix", concurrency=0, load=load, latency=waits, samples=())


def agents(speed: float) -> SuiteResult:
    """One conversation and four at once; their prompts grow, and so do hits."""
    cells = tuple(
        _turn(turn, streams, speed / streams) for streams in (1, 4) for turn in range(1, 7)
    )
    return SuiteResult("agents", "3c4d", rounds=3, warmups=1, cells=cells)


def _turn(turn: int, streams: int, speed: float) -> Cell:
    found = cell(f"turn {turn}", speed=speed, max_tokens=256, concurrency=streams)
    prompt, cached = 900 + 400 * turn, 100 + 400 * turn
    samples = (replace(it, prompt_tokens=prompt, cached_tokens=cached) for it in found.samples)
    return replace(found, samples=tuple(samples))


def five(speed: float) -> SuiteResult:
    factors = (1.0, 1.03, 1.0, 0.94, 1.07)
    cells = tuple(
        cell(name, speed=speed * factor, max_tokens=tokens)
        for (name, tokens), factor in zip(PROMPTS.items(), factors, strict=True)
    )
    return SuiteResult("five", "0f5e", rounds=3, warmups=1, cells=cells)


def decode(speed: float) -> SuiteResult:
    factors = {"prose": 0.9, "code": 1.1, "agent": 1.2}
    cells = tuple(
        cell(name, speed=speed * factor, max_tokens=512) for name, factor in factors.items()
    )
    return SuiteResult("decode", "de0d", rounds=3, warmups=1, cells=cells)


def sweep(speed: float) -> SuiteResult:
    """Concurrency at 1K of context, then context with one stream; interrupted before 64K."""
    over_concurrency = tuple(
        cell(
            "context",
            speed=speed / (1 + 0.15 * (streams - 1)),
            max_tokens=128,
            concurrency=streams,
            context_tokens=1024,
        )
        for streams in (1, 2, 4, 8, 16, 32)
    )
    over_context = tuple(
        cell("context", speed=speed / (1 + context / 2e5), max_tokens=128, context_tokens=context)
        for context in (4096, 16384, 32768)
    )
    return SuiteResult(
        "sweep",
        "53ee",
        rounds=3,
        warmups=1,
        is_complete=False,
        cells=over_concurrency + over_context,
        notes=("context 262144 left out: the model serves up to 131072 tokens",),
    )


def standard(speed: float) -> SuiteResult:
    tools = (
        ToolResult(
            "vllm bench serve",
            "0.25.1",
            ("vllm", "bench", "serve", "--model", "qwen"),
            {"end_to_end_tok_s": 0.95 * speed, "ttft_p50_s": 0.2, "tpot_p50_s": 1 / speed},
            {"completed": 32},
        ),
        ToolResult(
            "llama-benchy",
            "0.4.0",
            ("llama-benchy", "--model", "qwen"),
            {"decode_tok_s": speed},
            {"benchmarks": []},
        ),
    )
    return SuiteResult("standard", "", rounds=1, warmups=0, tools=tools)


def origin(recipe: str, floor: float) -> RunOrigin:
    return RunOrigin(
        url="http://127.0.0.1:8000",
        model="qwen",
        client=ClientOrigin("0.1.0", "3.12.3", "here"),
        deployment="main",
        recipe=RecipeOrigin(recipe, "ab" * 32, f"the recipe {recipe}", {"name": recipe}, floor),
        images=(ImageOrigin("sparkdeploy/plugin:80bb", "sha256:" + "cd" * 32, "80bb", {}),),
        checkpoint=CheckpointOrigin("Intel/Qwen3.5-122B-A10B-int4-AutoRound", "0a" * 20, "ef" * 32),
        engine=EngineOrigin("0.25.1", "{'port': 8000}", "FLASHINFER", 1_300_000, 35.2, 144, "int8"),
        machine=MachineOrigin(
            "NVIDIA DGX Spark", "aarch64", "6.14.0", 20, 128 * 10**9, "NVIDIA GB10", "580.95.05"
        ),
    )


def _sample(
    prompt: str, number: int, stream: int, *, speed: float, max_tokens: int, ttft_s: float
) -> RequestSample:
    decode_s = max_tokens / speed
    return RequestSample(
        round=number,
        stream=stream,
        prompt=prompt,
        sent_s=number * (ttft_s + decode_s),
        duration_s=ttft_s + decode_s,
        prompt_tokens=40,
        completion_tokens=max_tokens,
        first_arrival_tokens=1,
        arrivals=max_tokens // 2,
        ttft_s=ttft_s,
        tpot_s=1 / speed,
        gap_s=quantiles(2.5 / speed),
        end_to_end_tok_s=max_tokens / (ttft_s + decode_s),
        decode_tok_s=speed,
        counting=Counting.TOKEN_IDS,
        finish_reason="length",
    )


def judged(reference: Run, candidate: Run, **changed: Any) -> QualityResult:
    figures = QualityFigures(
        against=served_of(reference.origin).name,
        positions=1_234,
        top1_agreement=Estimate(0.987, 0.98, 0.99),
        mean_kl_nats=Estimate(0.0012, 0.001, 0.002),
        most_mean_kl_nats=0.0034,
        perplexity_change=Estimate(0.001),
        drift_nats=Estimate(0.05),
    )
    made = QualityResult(
        taken_at="2026-11-25T08:00:00+00:00",
        reference=served_of(reference.origin),
        candidate=served_of(candidate.origin),
        figures=figures,
        failures=(),
        limits={"max_mean_kl_nats": 0.01},
    )
    return replace(made, **changed)


def fields_of(schema: Any) -> dict[str, tuple[list[str], list[str]]]:
    """Names and required names of every object: pydantic's wording differs between versions."""
    objects = {**schema["$defs"], "Run": schema}
    return {
        name: (sorted(item.get("properties", item.get("enum", ()))), item.get("required", []))
        for name, item in objects.items()
    }


def bundle_with(*recipes: SharedRecipe) -> CampaignBundle:
    return CampaignBundle(
        campaign_id="20261125T200000Z",
        started_at="2026-11-25T20:00:00Z",
        made_at="2026-11-26T04:00:00Z",
        sparkdeploy="0.1.0",
        is_quick=False,
        machine=recipes[0].run.origin.machine if recipes and recipes[0].run else None,
        recipes=recipes,
    )
