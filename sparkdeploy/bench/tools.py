"""The standard tools: how they are called, and what their reports say. They are run elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkdeploy.bench.record import ToolResult
from sparkdeploy.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VLLM_BENCH = "vllm bench serve"
LLAMA_BENCHY = "llama-benchy"
LLAMA_BENCHY_VERSION = "0.4.0"
"""What `uvx` fetches where none is installed; the flags and the report are those of this one."""
PROMPT_TOKENS = 2048
ANSWER_TOKENS = 128
PROMPTS_A_ROUND = 4
TEMPLATE_TOKENS = 64
"""Room for what a chat template adds."""
_MS = 0.001
_VLLM_FIGURES = {
    "end_to_end_tok_s": ("output_throughput", 1.0),
    "ttft_p50_s": ("median_ttft_ms", _MS),
    "tpot_p50_s": ("median_tpot_ms", _MS),
    "gap_p50_s": ("median_itl_ms", _MS),
    "gap_p99_s": ("p99_itl_ms", _MS),
    "failed_requests": ("failed", 1.0),
}
_BENCHY_FIGURES = {
    "decode_tok_s": ("tg_throughput", 1.0),
    "stream_decode_tok_s": ("tg_req_throughput", 1.0),
    "prefill_tok_s": ("pp_throughput", 1.0),
    "ttft_mean_s": ("e2e_ttft", _MS),
}


@dataclass(frozen=True, slots=True)
class Load:
    """What both tools ask of the server: one stream, temperature 0."""

    base_url: str
    model: str
    prompt_tokens: int
    answer_tokens: int
    rounds: int


def load_for(base_url: str, model: str, *, rounds: int, max_model_len: int | None) -> Load:
    """Return the leaderboards' load (2048 and 128 tokens), shorter where the model is."""
    room = (max_model_len or PROMPT_TOKENS * 2) - ANSWER_TOKENS - TEMPLATE_TOKENS
    if room < ANSWER_TOKENS:
        raise BenchError(f"suite standard does not fit into {max_model_len} tokens of context")
    return Load(base_url, model, min(PROMPT_TOKENS, room), ANSWER_TOKENS, rounds)


def vllm_bench_options(load: Load, *, tokenizer: str, result: str) -> tuple[str, ...]:
    """Return the options of `vllm bench serve`; `tokenizer` and `result` are paths beside it."""
    folder, _, file = result.rpartition("/")
    return (
        *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", load.base_url, "--model", tokenizer, "--served-model-name", load.model),
        *("--tokenizer", tokenizer, "--dataset-name", "random", "--seed", "1"),
        *("--random-input-len", str(load.prompt_tokens)),
        *("--random-output-len", str(load.answer_tokens), "--ignore-eos"),
        *("--num-prompts", str(PROMPTS_A_ROUND * load.rounds), "--num-warmups", "1"),
        *("--max-concurrency", "1", "--temperature", "0", "--disable-tqdm"),
        *("--save-result", "--result-dir", folder or "/", "--result-filename", file),
    )


def llama_benchy_options(
    load: Load, *, tokenizer: str, book_url: str, result: str
) -> tuple[str, ...]:
    """Return llama-benchy's options; the book is ours, so that nothing is fetched.

    Sampling is switched off: its own default is the model's, and figures of other samples than
    ours would not be comparable.
    """
    return (
        *("--base-url", f"{load.base_url}/v1", "--model", load.model),
        *("--served-model-name", load.model, "--tokenizer", tokenizer, "--book-url", book_url),
        *("--pp", str(load.prompt_tokens), "--tg", str(load.answer_tokens), "--exact-tg"),
        *("--depth", "0", "--concurrency", "1", "--runs", str(load.rounds)),
        *("--extra-body", "temperature=0", "--latency-mode", "none", "--skip-coherence"),
        *("--format", "json", "--save-result", result),
    )


def read_vllm_bench(text: str, *, version: str, command: Sequence[str]) -> ToolResult:
    """Read its result file; BenchError when nothing was completed."""
    report = _object(text, VLLM_BENCH)
    if not report.get("completed"):
        raise BenchError(f"{VLLM_BENCH}: no request succeeded")
    figures = {
        name: float(report[key]) * scale
        for name, (key, scale) in _VLLM_FIGURES.items()
        if report.get(key) is not None
    }
    return ToolResult(VLLM_BENCH, version, tuple(command), figures, report)


def read_llama_benchy(text: str, *, command: Sequence[str]) -> ToolResult:
    """Read its JSON report; BenchError when nothing was measured."""
    report = _object(text, LLAMA_BENCHY)
    tests = report.get("benchmarks") or [{}]
    figures = {
        name: float(tests[0][key]["mean"]) * scale
        for name, (key, scale) in _BENCHY_FIGURES.items()
        if tests[0].get(key)
    }
    if "decode_tok_s" not in figures:
        raise BenchError(f"{LLAMA_BENCHY}: no request succeeded")
    version = str(report.get("version", ""))
    return ToolResult(LLAMA_BENCHY, version, tuple(command), figures, report)


def _object(text: str, tool: str) -> Mapping[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise BenchError(f"{tool} left no report that can be read: {error}") from error
    if not isinstance(content, dict):
        raise BenchError(f"{tool} left no report that can be read")
    return content
