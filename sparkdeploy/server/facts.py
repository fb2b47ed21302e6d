"""What a starting engine logs: back ends, cache sizes, the conversion; what was planned of it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from sparkdeploy import yaml_text
from sparkdeploy.plan.launch import PlannedBackend
from sparkdeploy.server.log_lines import Transport, message_of, read_transport

_FORMATS = {"fp8": {"fp8", "fp8_e4m3", "fp8_ds_mla"}, "nvfp4": {"nvfp4", "nvfp4_ds_mla"}}
"""Names of vLLM's for the same KV cache format; `_ds_mla` is how sparse MLA lays it out."""


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
    if _TYPES[name] == int | None:
        return int(text.replace(",", ""))
    return float(text) if _TYPES[name] == float | None else text


def _speculation(config: str) -> str | None:
    if config == "None":
        return "off"
    method = re.search(r"method='(\w+)'", config)
    tokens = re.search(r"num_spec(?:ulative)?_tokens=(\d+)", config)
    return f"{method[1]} {tokens[1]}" if method and tokens else None


class Match(Enum):
    AS_PLANNED = "as planned"
    DIFFERS = "differs"
    NOT_LOGGED = "not logged"
    """This release of vLLM does not say; nothing is claimed."""


@dataclass(frozen=True, slots=True)
class BackendCheck:
    planned: PlannedBackend
    seen: str | None

    @property
    def match(self) -> Match:
        return _match(self.planned.subject, self.planned.wanted, self.seen)

    @property
    def is_failure(self) -> bool:
        """Say whether the deployment may not stay."""
        # vLLM's lines may be worded otherwise tomorrow; NCCL's have stayed for years.
        is_transport = self.planned.subject == "transport"
        return is_transport and self.match is Match.DIFFERS and not self.planned.warns_only

    def describe(self) -> str:
        runs = self.seen if self.seen is not None else "the log does not say"
        cost = "; one adapter has half the rate of a port, and sockets far less"
        cost = cost if self.planned.subject == "transport" else ""
        return f"{self.planned.subject}: planned {self.planned.wanted}, runs {runs}{cost}"


def compare_backends(
    planned: Iterable[PlannedBackend], facts: EngineFacts
) -> tuple[BackendCheck, ...]:
    logged = {
        "attention": facts.attention_backend,
        "moe": facts.moe_backend,
        "linear": ", ".join(facts.linear_kernels) or None,
        "kv_cache": facts.kv_cache_dtype,
        "speculation": facts.speculation,
        "graphs": facts.graph_mode,
        "transport": facts.transport.describe(),
    }
    return tuple(BackendCheck(item, logged[item.subject]) for item in planned)


def _match(subject: str, wanted: str, seen: str | None) -> Match:
    if seen is None:
        return Match.NOT_LOGGED
    if subject == "transport":
        return _transport_match(wanted, seen)
    if subject == "linear":
        is_same = wanted in seen.split(", ")
    elif subject == "kv_cache":
        is_same = seen in _FORMATS.get(wanted, {wanted})
    elif subject == "speculation":
        is_same = _drafts_alike(wanted, seen)
    elif subject == "graphs":
        is_same = _graph_rank(seen) >= _graph_rank(wanted.upper())
    else:
        is_same = seen.upper() == wanted.upper()
    return Match.AS_PLANNED if is_same else Match.DIFFERS


def _drafts_alike(wanted: str, seen: str) -> bool:
    """Some releases name MTP after the model, `qwen3_5_mtp`, and recipes may do so too."""
    (*method, tokens), (*seen_method, seen_tokens) = wanted.split(), seen.split()
    is_named_alike = not method or method == seen_method
    is_mtp = all(name and name[0].endswith("mtp") for name in (method, seen_method))
    return tokens == seen_tokens and (is_named_alike or is_mtp)


def _transport_match(wanted: str, seen: str) -> Match:
    network, _, names = wanted.partition(" over ")
    seen_network, _, seen_names = seen.partition(" over ")
    if network != seen_network:
        return Match.DIFFERS
    if names and not seen_names:
        return Match.NOT_LOGGED
    # NCCL takes a name for all that begin with it.
    adapters = seen_names.split(", ")
    are_used = all(any(it.startswith(name) for it in adapters) for name in names.split(", "))
    return Match.AS_PLANNED if are_used else Match.DIFFERS


def _graph_rank(mode: str) -> int:
    return 2 if "FULL" in mode else 1 if "PIECEWISE" in mode else 0
