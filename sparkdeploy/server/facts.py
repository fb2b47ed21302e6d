"""What a starting engine says of itself in its log: back ends, cache sizes, what the plugin did."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from sparkdeploy.server.log_lines import said

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The last word of the log on each matter; None where it has not spoken.

    `kv_cache_tokens` is not comparable across vLLM 0.19 and 0.20, which redefined it.
    """

    vllm_version: str | None = None
    attention_backend: str | None = None
    """The served model's, which is loaded first; a drafter may choose another one."""
    moe_backend: str | None = None
    linear_kernels: tuple[str, ...] = ()
    """Every kernel that was chosen for some linear layer, in order of appearance."""
    kv_cache_dtype: str | None = None
    graph_mode: str | None = None
    """vLLM's CUDAGraphMode after all that it took back: FULL_AND_PIECEWISE, PIECEWISE, NONE..."""
    speculation: str | None = None
    """Method and tokens a step, such as `mtp 2`; `off` when vLLM says that there is none."""
    fp8_layers: int | None = None
    lm_head: str | None = None
    draft_head_rows: int | None = None
    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    model_memory_gib: float | None = None
    shares_mtp_weights: bool = False
    mean_acceptance_length: float | None = None
    draft_acceptance_percent: float | None = None
    engine_init_s: float | None = None

    @property
    def plugin_spoke(self) -> bool:
        """Say whether the plugin's own line has been seen."""
        return self.fp8_layers is not None


Merge = Literal["last", "first", "every"]


@dataclass(frozen=True, slots=True)
class _Reading:
    pattern: re.Pattern[str]
    fields: tuple[tuple[str, Callable[[str], Any]], ...]
    merge: Merge = "last"


def read_facts(text: str, known: EngineFacts) -> EngineFacts:
    """Return what is known after one more line; a line may tell several things."""
    # The plugin's own lines say that the treatment is on: a prompt that quotes one says nothing.
    words = said(text)
    for reading in _PLUGIN_READINGS:
        if match := reading.pattern.match(words):
            known = _merged(known, reading, match)
    for reading in _READINGS:
        if match := reading.pattern.search(text):
            known = _merged(known, reading, match)
    return known


def _merged(known: EngineFacts, reading: _Reading, match: re.Match[str]) -> EngineFacts:
    try:
        found = {
            name: convert(value)
            for (name, convert), value in zip(reading.fields, match.groups(), strict=True)
        }
    except ValueError:
        # Such as 1.2.3 GiB: no line of vLLM's, whoever wrote it.
        return known
    if reading.merge == "first":
        found = {name: value for name, value in found.items() if getattr(known, name) is None}
    elif reading.merge == "every":
        found = {name: _with(getattr(known, name), value) for name, value in found.items()}
    return replace(known, **found)


def _with(values: tuple[str, ...], value: str) -> tuple[str, ...]:
    return values if value in values else (*values, value)


def _count(text: str) -> int:
    return int(text.replace(",", ""))


def _method_and_tokens(config: str) -> str | None:
    method = re.search(r"method='(\w+)'", config)
    tokens = re.search(r"num_spec(?:ulative)?_tokens=(\d+)", config)
    return f"{method[1]} {tokens[1]}" if method and tokens else None


def _reading(
    pattern: str, *fields: tuple[str, Callable[[str], Any]], merge: Merge = "last"
) -> _Reading:
    return _Reading(re.compile(pattern), fields, merge)


_PLUGIN_READINGS = (
    _reading(
        r"sparkdeploy: spark-hybrid active: fp8=(\d+) layers, lm_head=(\w+)",
        ("fp8_layers", int),
        ("lm_head", str),
    ),
    _reading(r"sparkdeploy: draft head active: rows=(\d+)", ("draft_head_rows", int)),
)
_READINGS = (
    _reading(r"vLLM API server version v?(\d\S*)", ("vllm_version", str)),
    _reading(r"Initializing a V1 LLM engine \(v(\d[^)]*)\)", ("vllm_version", str)),
    _reading(
        r"Using (?:AttentionBackendEnum\.)?(\w+) attention backend out of potential backends",
        ("attention_backend", str),
        merge="first",
    ),
    # What was asked for by name is confirmed in other words.
    _reading(
        r"Using AttentionBackendEnum\.(\w+) backend\.", ("attention_backend", str), merge="first"
    ),
    _reading(r"Using '?([\w ]+?)'?(?: \w+)? MoE backend out of", ("moe_backend", str)),
    _reading(r"Using '(\w+)' \w+ MoE backend", ("moe_backend", str)),
    _reading(r"Using (\w+Kernel) for ", ("linear_kernels", str), merge="every"),
    _reading(r"Selected (\w+Kernel) for ", ("linear_kernels", str), merge="every"),
    _reading(r"Initializing a V1 LLM.* kv_cache_dtype=(\w+)", ("kv_cache_dtype", str)),
    _reading(r"Using (\w+) data type to store kv cache", ("kv_cache_dtype", str)),
    _reading(
        r"Initializing a V1 LLM.*'cudagraph_mode': <CUDAGraphMode\.(\w+)", ("graph_mode", str)
    ),
    _reading(r"setting cudagraph_mode=(?:CUDAGraphMode\.)?(\w+)", ("graph_mode", str)),
    _reading(r"Overriding cudagraph_mode .*to (?:CUDAGraphMode\.)?(\w+)", ("graph_mode", str)),
    _reading(r"(Skipping CUDA graph capture)", ("graph_mode", lambda _: "NONE")),
    _reading(
        r"Initializing a V1 LLM.*speculative_config=(None),", ("speculation", lambda _: "off")
    ),
    _reading(
        r"Initializing a V1 LLM.*speculative_config=SpeculativeConfig\(([^)]*)\)",
        ("speculation", _method_and_tokens),
    ),
    _reading(r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens", ("kv_cache_tokens", _count)),
    _reading(r"Available KV cache memory: ([\d.]+) GiB", ("kv_cache_gib", float)),
    _reading(r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache", ("kv_cache_gib", float)),
    _reading(r"Model loading took ([\d.]+) ?GiB", ("model_memory_gib", float)),
    _reading(
        r"(Detected MTP model\. Sharing target model)", ("shares_mtp_weights", lambda _: True)
    ),
    _reading(
        r"SpecDecoding metrics: Mean acceptance length: ([\d.]+),"
        r".*Avg Draft acceptance rate: ([\d.]+)%",
        ("mean_acceptance_length", float),
        ("draft_acceptance_percent", float),
    ),
    _reading(r"init engine \(.*\) took ([\d.]+) s", ("engine_init_s", float)),
)
