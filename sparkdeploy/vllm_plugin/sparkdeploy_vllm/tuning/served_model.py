"""What the container's `vllm serve` serves, and the shapes that its kernels see; standard library
only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sparkdeploy_vllm.turboquant.format import BITS
from sparkdeploy_vllm.weights.conversion import BLOCK_KEY

VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary to a multiple of it."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model's folder, and what of its launch decides the shapes."""

    model: Path
    ranks: int = 1
    cache_dtype: str = "auto"
    query_tokens: int = 1
    """Tokens of a request that a step may verify, the one without a draft included."""


class AttentionShape(NamedTuple):
    """A layer's attention over a TurboQuant cache, as one rank has it."""

    cache_dtype: str
    query_heads: int
    kv_heads: int
    head_dim: int
    query_tokens: int


def served(command: bytes) -> Served:
    words = command.decode(errors="replace").split("\0")
    following = dict(pairwise(words))
    model = Path(following.get("serve", ""))
    if not model.is_absolute():
        raise ValueError("this container serves no model: name one with --model")
    drafts = json.loads(following.get("--speculative-config", "{}"))
    return Served(
        model,
        ranks=int(following.get("--tensor-parallel-size", "1")),
        cache_dtype=following.get("--kv-cache-dtype", "auto"),
        query_tokens=1 + int(drafts.get("num_speculative_tokens", 0)),
    )


class HeadShape(NamedTuple):
    vocab: int
    hidden: int
    weights: Literal["int8", "int4"] = "int8"


def head_shapes(config: Mapping[str, Any], *, ranks: int) -> list[HeadShape]:
    """Return the heads' matrices that one of `ranks` ranks holds, from config.json.

    The draft model's own head is among them, or a rank's share of it. ValueError when the config
    names no sizes.
    """
    vocab, hidden = _sizes(config, "vocab_size", "hidden_size")
    padded = -(-vocab // VOCABULARY_PADDING) * VOCABULARY_PADDING
    block = config.get("quantization_config", {}).get(BLOCK_KEY, {})
    weights = "int4" if block.get("lm_head") == "int4" else "int8"
    shapes = [HeadShape(padded // ranks, hidden, weights)]
    draft = block.get("draft_lm_head")
    if draft:
        shapes.append(HeadShape(-(-int(draft["rows"]) // ranks), hidden))
    return shapes


def attention_shape(config: Mapping[str, Any], launch: Served) -> AttentionShape | None:
    """Return None where the cache is no TurboQuant; ValueError when the config names no sizes."""
    if launch.cache_dtype not in BITS:
        return None
    text = config.get("text_config", config)
    query_heads, hidden = _sizes(config, "num_attention_heads", "hidden_size")
    return AttentionShape(
        launch.cache_dtype,
        query_heads // launch.ranks,
        # vLLM gives each rank one where there are fewer than ranks.
        max(1, (text.get("num_key_value_heads") or query_heads) // launch.ranks),
        text.get("head_dim") or hidden // query_heads,
        launch.query_tokens,
    )


def _sizes(config: Mapping[str, Any], first: str, second: str) -> tuple[int, int]:
    text = config.get("text_config", config)
    one, other = text.get(first), text.get(second)
    if not isinstance(one, int) or not isinstance(other, int):
        raise ValueError(f"its config.json names no {first} and {second}")  # noqa: TRY004
    return one, other
