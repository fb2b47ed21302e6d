"""What a real vLLM is started with to see its cache, and the planner's answer to the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkdeploy.checkpoint.architecture import architecture_of
from sparkdeploy.checkpoint.layers import STATE_BYTES
from sparkdeploy.estimate.kv_cache import (
    CPU_BLOCK_TOKENS,
    CUDA_BLOCK_TOKENS,
    CacheLayout,
    CacheSettings,
    cache_layout,
)
from tests.families import NAMES, config

POOL_BYTES = 1 << 28
COMMON = {"max_model_len": 4096, "max_num_batched_tokens": 1024, "max_num_seqs": 8}


@dataclass(frozen=True)
class Case:
    family: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        said = ", ".join(f"{key}={value}" for key, value in self.arguments.items())
        return f"{self.family} ({said})" if said else self.family

    def as_dict(self) -> dict[str, Any]:
        arguments = {**COMMON, "kv_cache_memory_bytes": POOL_BYTES, **self.arguments}
        return {"name": self.name, "config": config(self.family), "arguments": arguments}


def _drafting(tokens: int) -> dict[str, Any]:
    return {
        "enable_prefix_caching": False,
        "speculative_config": {"method": "mtp", "num_speculative_tokens": tokens},
    }


CASES = (
    *(Case(name) for name in NAMES if name != "bert"),
    *(
        Case(name, {"enable_prefix_caching": False})
        for name in ("qwen3.5-moe", "qwen3-next", "nemotron-h", "granite-hybrid")
    ),
    Case("qwen3.5-moe", _drafting(1)),
    Case("qwen3.5-moe", _drafting(2)),
    Case("qwen3.5-moe", {"block_size": 1024}),
    Case("llama", {"block_size": 32}),
    Case("llama", {"kv_cache_dtype": "fp8"}),
    Case("gpt-oss", {"block_size": 32}),
    Case("gpt-oss", {"disable_hybrid_kv_cache_manager": True}),
    Case("gemma3", {"disable_hybrid_kv_cache_manager": True}),
)


@dataclass(frozen=True)
class Machine:
    """What of a layout the machine decides."""

    name: str
    alignment_tokens: int
    memory_bytes: int | None


CPU = Machine("CPU", CPU_BLOCK_TOKENS, STATE_BYTES["float32"])
GPU = Machine("GPU", CUDA_BLOCK_TOKENS, None)


def planned(family: str, said: Mapping[str, Any], machine: Machine) -> CacheLayout:
    """Return the planner's layout for what a vLLM was started with and decided."""
    arguments, model = said["arguments"], architecture_of(config(family))
    drafting = arguments.get("speculative_config", {})
    settings = CacheSettings(
        kv_dtype=arguments.get("kv_cache_dtype", "auto"),
        vllm=said["vllm"],
        alignment_tokens=machine.alignment_tokens,
        block_tokens=arguments.get("block_size"),
        batched_tokens=arguments["max_num_batched_tokens"],
        draft_tokens=drafting.get("num_speculative_tokens", 0),
        prefix_caching=said["prefix_caching"],
        joins_windows=arguments.get("disable_hybrid_kv_cache_manager", False),
        memory_bytes=machine.memory_bytes,
    )
    layout = cache_layout(model, settings, drafter=model.draft_layers if drafting else ())
    assert layout is not None
    return layout


def hold(family: str, said: Mapping[str, Any], machine: Machine = CPU) -> None:
    """Hold the planner against everything that a vLLM said of its cache."""
    layout, length = planned(family, said, machine), said["arguments"]["max_model_len"]
    tokens = layout.logged_tokens(POOL_BYTES, length, said["vllm"])
    concurrency = layout.concurrency(POOL_BYTES, length)
    # One line from 0.28 on, two before.
    log = ", ".join(said["log"])
    assert f"{machine.name} KV cache size: {tokens:,} tokens" in log
    assert f"Maximum concurrency for {length:,} tokens per request: {concurrency:.2f}x" in log
    assert layout.blocks(POOL_BYTES) == said["blocks"]
    assert [len(group.layers) for group in layout.groups] == [it["layers"] for it in said["groups"]]
    for mine, theirs in zip(layout.groups, said["groups"], strict=True):
        # Without prefix caching a state has no tokens of its own.
        if mine.cache.kind != "state" or said["prefix_caching"]:
            assert mine.cache.block_tokens == theirs["block_tokens"]
