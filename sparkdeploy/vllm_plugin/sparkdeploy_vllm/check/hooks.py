"""Which of vLLM's functions and classes the plugin calls, overrides or stands in for: hooks.toml.

A release of vLLM that gives a class another method which takes what ours changes (a head, a
layer's weights, the metadata of attention) would work around the plugin without a word. Every such
method is either one that ours has, or is named there with the reason why it does no harm.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from sparkdeploy_vllm.check.releases import Release

EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding"
HEAD_CALLERS = ("vllm.model_executor.models.qwen3_5", "vllm.model_executor.models.qwen3_5_mtp")


class HookTrace(Enum):
    """What of an API the sources must show."""

    DEFINED = "defined"
    CALLED = "called"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class Api:
    """Something of vLLM's that the plugin calls, overrides or is called by; see hooks.toml."""

    module: str
    name: str
    arguments: tuple[str, ...] | None = None
    required: bool = True
    since: Release = ()
    trace: HookTrace = HookTrace.DEFINED


@dataclass(frozen=True, slots=True)
class StandIn:
    """A class of ours in the place of one of vLLM's, each by module and name; see hooks.toml."""

    ours: tuple[str, str]
    theirs: tuple[str, str]
    changed: frozenset[str]
    harmless: Mapping[str, str]
    required: bool = True


def _api(group: Mapping[str, Any], signature: str) -> Api:
    name, bracket, listed = signature.removesuffix(")").partition("(")
    return Api(
        group["module"],
        name,
        tuple(listed.split(", ") if listed else ()) if bracket else None,
        group.get("required", True),
        tuple(group.get("since", ())),
        HookTrace(group.get("trace", "defined")),
    )


def _stand_in(entry: Mapping[str, Any]) -> StandIn:
    return StandIn(
        tuple(entry["ours"]),
        tuple(entry["theirs"]),
        frozenset(entry["changed"]),
        entry["harmless"],
        entry.get("required", True),
    )


_DATA = tomllib.loads(Path(__file__).with_name("hooks.toml").read_text(encoding="utf-8"))
TOUCHED = tuple(_api(group, name) for group in _DATA["api"] for name in group["names"])
STAND_INS = tuple(_stand_in(entry) for entry in _DATA["stand_in"])
