"""What a starting engine logs: its back ends, cache sizes, and what the plugin did."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
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
_PATTERNS = yaml_text.load_file(Path(__file__).with_name("facts.yaml"))
_PLUGIN_LINES = tuple(re.compile(pattern) for pattern in _PATTERNS["plugin"])
_VLLM_LINES = tuple(re.compile(pattern) for pattern in _PATTERNS["vllm"])


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
