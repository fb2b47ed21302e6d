"""Which of vLLM's functions and classes the plugin calls, overrides or stands in for: hooks.toml.

A release of vLLM that gives a class another method which takes what ours changes (a head, a
layer's weights, the metadata of attention) would work around the plugin without a word. Every such
method is either one that ours has, or is named there with the reason why it does no harm.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkdeploy_vllm.check.releases import Release

EMBEDDING = "vllm.model_executor.layers.vocab_parallel_embedding"
HEAD_CALLERS = ("vllm.model_executor.models.qwen3_5", "vllm.model_executor.models.qwen3_5_mtp")


@dataclass(frozen=True, slots=True)
class Api:
    """Something of vLLM's that the plugin calls, overrides or is called by; see hooks.toml."""

    module: str
    name: str
    arguments: tuple[str, ...] | None = None
    required: bool = True
    since: Release = ()
    trace: Literal["defined", "called", "named"] = "defined"


@dataclass(frozen=True, slots=True)
class StandIn:
    """A class of ours in the place of one of vLLM's, each by module and name; see hooks.toml."""

    ours: tuple[str, str]
    theirs: tuple[str, str]
    changed: list[str]
    harmless: Mapping[str, str]
    required: bool = True


def _api(module: str, names: list[str], since: tuple[int, ...] = (), **further: Any) -> list[Api]:
    split = [name.removesuffix(")").partition("(") for name in names]
    return [
        Api(
            module,
            name,
            tuple(filter(None, listed.split(", "))) if bracket else None,
            since=tuple(since),
            **further,
        )
        for name, bracket, listed in split
    ]


_DATA = tomllib.loads(Path(__file__).with_name("hooks.toml").read_text(encoding="utf-8"))
TOUCHED = tuple(api for group in _DATA["api"] for api in _api(**group))
STAND_INS = tuple(StandIn(**entry) for entry in _DATA["stand_in"])
