"""The made drafter: what vLLM's qwen3_dflash.py loads, and a guess that is sometimes right."""

from __future__ import annotations

import functools
import json
import math
import struct
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdeploy.checkpoint.tiny_model.build import (
    ARCHITECTURE,
    ROPE_THETA,
    build_drafter,
    drafter_tensors,
    target_layers,
)
from sparkdeploy.checkpoint.tiny_model.grammar import CONSTANT
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape

SHAPE = TinyShape()
WIDTH = SHAPE.hidden
_ATTENTION = "layers.0.self_attn"


@functools.cache
def _values(name: str) -> list[float]:
    dtype, _, payload = drafter_tensors(SHAPE, 1)[name]
    assert dtype == "BF16"
    content = payload if isinstance(payload, bytes) else payload()
    bits = struct.unpack(f"<{len(content) // 2}H", content)
    return [struct.unpack("<f", struct.pack("<I", bit << 16))[0] for bit in bits]


def test_its_configuration_is_read_as_one_of_dflash(tmp_path: Path) -> None:
    build_drafter(tmp_path / "drafter", SHAPE, seed=1)
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    assert config["architectures"] == [ARCHITECTURE]
    assert config["layer_types"] == ["full_attention"] * config["num_hidden_layers"]
    assert config["vocab_size"] == SHAPE.vocab > config["dflash_config"]["mask_token_id"]
    assert config["hidden_size"] == SHAPE.hidden
    assert all(0 <= layer < SHAPE.layers for layer in target_layers(SHAPE))
    # More drafts than that were never trained: vLLM refuses none, and the recipe asks for twelve.
    assert config["block_size"] > 12


@given(behind=st.integers(0, 600))
@settings(deadline=None, max_examples=40)
def test_its_layer_looks_back_one_token_and_no_other(behind: int) -> None:
    half = WIDTH // 2
    queries = [_values(f"{_ATTENTION}.q_proj.weight")[at * WIDTH + CONSTANT] for at in range(WIDTH)]
    keys = [_values(f"{_ATTENTION}.k_proj.weight")[at * WIDTH + CONSTANT] for at in range(WIDTH)]

    def score(distance: int) -> float:
        total = 0.0
        for pair in range(half):
            angle = distance * ROPE_THETA ** (-2 * pair / WIDTH)
            real = keys[pair] * math.cos(angle) + keys[pair + half] * math.sin(angle)
            total += queries[pair] * real
        size = math.sqrt(sum(it * it for it in queries) * sum(it * it for it in keys))
        weights = (
            _values(f"{_ATTENTION}.q_norm.weight")[0] * _values(f"{_ATTENTION}.k_norm.weight")[0]
        )
        return weights * math.sqrt(WIDTH) * total / size

    if behind == 1:
        return
    # Of a softmax a difference of four leaves the others less than two hundredths each.
    assert score(1) - score(behind) > 4
