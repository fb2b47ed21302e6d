"""What a starting engine logs: its back ends, cache sizes, and what the plugin did."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sparkdeploy.server.log_lines import message_of
from sparkdeploy.server.nccl import Transport, read_transport


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The log's last word on each subject; None where it says nothing.

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
    """Expert layers of the draft layer that became INT4."""
    draft_fp8_layers: int | None = None
    kv_cache_tokens: int | None = None
    kv_cache_gib: float | None = None
    transport: Transport = field(default_factory=Transport)
    """The last communicator's; vLLM makes several that all choose alike."""

    @property
    def has_plugin_line(self) -> bool:
        return self.fp8_layers is not None


_TYPES = {it.name: it.type for it in fields(EngineFacts)}


def read_facts(text: str, known: EngineFacts) -> EngineFacts:
    """Return what is known after one more line; a line may have several facts."""
    # The plugin's own lines say that the conversion is on: a prompt that quotes one says nothing.
    message = message_of(text)
    for pattern in _PLUGIN_LINES:
        if match := pattern.match(message):
            known = _merged(known, match)
    if (transport := read_transport(text, known.transport)) is not known.transport:
        return replace(known, transport=transport)
    for pattern in _VLLM_LINES:
        if match := pattern.search(text):
            known = _merged(known, match)
    return known


def _merged(known: EngineFacts, match: re.Match[str]) -> EngineFacts:
    try:
        new = {name: _value(name, text) for name, text in match.groupdict().items()}
    except ValueError:
        # Such as 1.2.3 GiB: no line of vLLM's, whoever wrote it.
        return known
    if known.attention_backend is not None:
        new.pop("attention_backend", None)
    if kernel := new.get("linear_kernels"):
        new["linear_kernels"] = tuple(dict.fromkeys((*known.linear_kernels, kernel)))
    return replace(known, **new)


def _value(name: str, text: str) -> Any:  # noqa: ANN401 - of the field's own type
    if name == "speculation":
        return _speculation(text)
    if name == "graph_mode" and text.startswith("Skipping"):
        return "NONE"
    if _TYPES[name] == "int | None":
        return int(text.replace(",", ""))
    return float(text) if _TYPES[name] == "float | None" else text


def _speculation(config: str) -> str | None:
    if config == "None":
        return "off"
    method = re.search(r"method='(\w+)'", config)
    tokens = re.search(r"num_spec(?:ulative)?_tokens=(\d+)", config)
    return f"{method[1]} {tokens[1]}" if method and tokens else None


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
        # A back end that was asked for by name is confirmed in another message.
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
    )
)
