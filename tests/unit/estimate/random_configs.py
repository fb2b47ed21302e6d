"""Random configurations of every family, made from the small ones by changing their numbers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from sparkdeploy.checkpoint.architecture import architecture_of
from sparkdeploy.checkpoint.layers import Architecture
from tests.families import NAMES, config

KEEP_A_CACHE = [name for name in NAMES if name != "bert"]
LAYER_LISTS = ("layer_types", "layers_block_type", "no_rope_layers", "attn_type_list")
WINDOWS = ("sliding_window", "attention_chunk_size")


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A family's configuration with other counts of layers and heads, and other windows."""
    found = config(draw(st.sampled_from(KEEP_A_CACHE)))
    text = found.get("text_config", found)
    repeats = draw(st.integers(1, 6))
    text["num_hidden_layers"] *= repeats
    for name in LAYER_LISTS:
        if isinstance(text.get(name), list):
            text[name] *= repeats
    if "hybrid_override_pattern" in text:
        text["hybrid_override_pattern"] *= repeats
    if "num_key_value_heads" in text:
        text["num_key_value_heads"] = draw(st.sampled_from([1, 2, 4, 8]))
    for name in WINDOWS:
        if isinstance(text.get(name), int):
            text[name] = draw(st.integers(1, 100_000))
    return found


def architectures() -> st.SearchStrategy[Architecture]:
    return configs().map(architecture_of)
