"""What a starting engine says of itself in its log: back ends, cache sizes, what the plugin did."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sparkdeploy.server.log_lines import said
from sparkdeploy.server.nccl import Transport, read_transport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the log says last of each subject; None where it says nothing.

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
    shared_int4_layers: int | None = None
    """Modules of shared experts that became INT4: three for a layer."""
    draft_head_rows: int | None = None
    draft_int4_layers: int | None = None
    """Of the draft layer: layers of experts that became INT4."""
    draft_fp8_layers: int | None = None
    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    model_memory_gib: float | None = None
    shares_mtp_weights: bool = False
    mean_acceptance_length: float | None = None
    draft_acceptance_percent: float | None = None
    engine_init_s: float | None = None
    transport: Transport = field(default_factory=Transport)
    """Of the last communicator; vLLM makes several that all choose alike."""

    @property
    def plugin_spoke(self) -> bool:
        return self.fp8_layers is not None


def read_facts(text: str, known: EngineFacts) -> EngineFacts:
    """Return what is known after one more line; a line may tell several things."""
    # The plugin's own lines say that the treatment is on: a prompt that quotes one says nothing.
    words = said(text)
    for pattern in _PLUGIN_LINES:
        if match := pattern.match(words):
            known = _merged(known, match)
    if (transport := read_transport(text, known.transport)) is not known.transport:
        return replace(known, transport=transport)
    for pattern in _VLLM_LINES:
        if match := pattern.search(text):
            known = _merged(known, match)
    return known


def _merged(known: EngineFacts, match: re.Match[str]) -> EngineFacts:
    try:
        found = {name: _FROM_TEXT.get(name, str)(text) for name, text in match.groupdict().items()}
    except ValueError:
        # Such as 1.2.3 GiB: no line of vLLM's, whoever wrote it.
        return known
    if known.attention_backend is not None:
        found.pop("attention_backend", None)
    if kernel := found.get("linear_kernels"):
        found["linear_kernels"] = tuple(dict.fromkeys((*known.linear_kernels, kernel)))
    return replace(known, **found)


def _speculation(config: str) -> str | None:
    if config == "None":
        return "off"
    method = re.search(r"method='(\w+)'", config)
    tokens = re.search(r"num_spec(?:ulative)?_tokens=(\d+)", config)
    return f"{method[1]} {tokens[1]}" if method and tokens else None


_FROM_TEXT: Mapping[str, Callable[[str], Any]] = {
    "speculation": _speculation,
    "graph_mode": lambda text: "NONE" if text.startswith("Skipping") else text,
    "fp8_layers": int,
    "shared_int4_layers": int,
    "draft_head_rows": int,
    "draft_int4_layers": int,
    "draft_fp8_layers": int,
    "kv_cache_tokens": lambda text: int(text.replace(",", "")),
    "kv_cache_gib": float,
    "model_memory_gib": float,
    "shares_mtp_weights": bool,
    "mean_acceptance_length": float,
    "draft_acceptance_percent": float,
    "engine_init_s": float,
}
"""How a field is made of what its group matched; the others are texts as they stand."""

_PLUGIN_LINES = (
    re.compile(
        r"sparkdeploy: spark-hybrid active: fp8=(?P<fp8_layers>\d+) layers,"
        r" lm_head=(?P<lm_head>\w+)"
    ),
    re.compile(
        r"^sparkdeploy: spark-hybrid active: .*,"
        r" int4=(?P<shared_int4_layers>\d+) layers of shared experts"
    ),
    re.compile(r"sparkdeploy: draft head active: rows=(?P<draft_head_rows>\d+)"),
    re.compile(
        r"sparkdeploy: draft layer active: int4=(?P<draft_int4_layers>\d+) layers of experts,"
        r" fp8=(?P<draft_fp8_layers>\d+) layers"
    ),
)
_VLLM_LINES = tuple(
    re.compile(pattern)
    for pattern in (
        r"vLLM API server version v?(?P<vllm_version>\d\S*)",
        r"Initializing a V1 LLM engine \(v(?P<vllm_version>\d[^)]*)\)",
        r"Using (?:AttentionBackendEnum\.)?(?P<attention_backend>\w+) attention backend out of"
        r" potential backends",
        # What was asked for by name is confirmed in other words.
        r"Using AttentionBackendEnum\.(?P<attention_backend>\w+) backend\.",
        r"Using '?(?P<moe_backend>[\w ]{1,64}?)'?(?: \w+)? MoE backend out of",
        r"Using '(?P<moe_backend>\w+)' \w+ MoE backend",
        r"Using (?P<linear_kernels>\w+Kernel) for ",
        r"Selected (?P<linear_kernels>\w+Kernel) for ",
        r"^(?>.*?Initializing a V1 LLM).* kv_cache_dtype=(?P<kv_cache_dtype>\w+)",
        r"Using (?P<kv_cache_dtype>\w+) data type to store kv cache",
        r"^(?>.*?Initializing a V1 LLM).*'cudagraph_mode': <CUDAGraphMode\.(?P<graph_mode>\w+)",
        r"setting cudagraph_mode=(?:CUDAGraphMode\.)?(?P<graph_mode>\w+)",
        r"^(?>.*?Overriding cudagraph_mode ).*to (?:CUDAGraphMode\.)?(?P<graph_mode>\w+)",
        r"(?P<graph_mode>Skipping CUDA graph capture)",
        r"^(?>.*?Initializing a V1 LLM).*speculative_config=(?P<speculation>None),",
        r"^(?>.*?Initializing a V1 LLM).*speculative_config="
        r"SpeculativeConfig\((?P<speculation>[^)]*)\)",
        r"(?:GPU|CPU) KV cache size: (?P<kv_cache_tokens>[\d,]+) tokens",
        r"Available KV cache memory: (?P<kv_cache_gib>[\d.]+) GiB",
        r"Explicitly set \((?P<kv_cache_gib>[\d.]+)/[\d.]+\) GiB for KV cache",
        r"Model loading took (?P<model_memory_gib>[\d.]+) ?GiB",
        r"(?P<shares_mtp_weights>Detected MTP model\. Sharing target model)",
        r"^(?>.*?SpecDecoding metrics: Mean acceptance length: )"
        r"(?P<mean_acceptance_length>[\d.]+),"
        r".*Avg Draft acceptance rate: (?P<draft_acceptance_percent>[\d.]+)%",
        r"init engine \([^()]{0,200}\) took (?P<engine_init_s>[\d.]+) s",
    )
)
