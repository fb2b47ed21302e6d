"""A drafter for a twin: DFlash's architecture, one narrow layer, and weights that guess sensibly.

Names, shapes and configuration are those that vLLM's `qwen3_dflash.py` loads (0.25.1 to 0.33.0).
The head and the embeddings are the target's: a drafter of z-lab's ships neither. `fc` joins the
hidden states of `target_layer_ids`; vLLM takes them after the layers of those numbers.

The layer looks back one token: its queries and keys read a constant of the embeddings, and their
rotation is such that they meet one position apart. The first of the masked tokens so finds the
embedding of the last known one, which the target's head continues as MTP's layer would (see
`grammar`): right about as often as a bit is set. The masked tokens behind it find a masked token,
and guess nothing: of twelve drafts about one in twenty is accepted.

One layer and no more: vLLM puts a drafter's layers into one group of its cache, whose groups have
as many layers as the rarest kind has, and a twin of four layers has one of full attention.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sparkdeploy.checkpoint import durable, safetensors
from sparkdeploy.checkpoint.contents import CONFIG_FILE
from sparkdeploy.checkpoint.tiny_model import values
from sparkdeploy.checkpoint.tiny_model.build import filled, write_once
from sparkdeploy.checkpoint.tiny_model.grammar import CONSTANT
from sparkdeploy.checkpoint.tiny_model.tokenizer import TinyTokenizer
from sparkdeploy.stored_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkdeploy.checkpoint.safetensors import TensorData
    from sparkdeploy.checkpoint.tiny_model.shape import TinyShape

ARCHITECTURE: Final = "DFlashDraftModel"
WEIGHTS_FILE: Final = "model.safetensors"
MASK_TOKEN: Final = "<|fim_pad|>"  # noqa: S105 - no password
BLOCK_TOKENS: Final = 16
"""As z-lab's drafters were trained: one known token and fifteen masked ones."""
ROPE_THETA: Final = 10_000_000.0
_CONFIG = Path(__file__).with_name("drafter.json")
_FORMAT = 1
"""Counts up whenever the same shape and seed give other bytes."""
_INNER = 256
_LOOKING_BACK = 5.0
"""Weight of the norms of queries and keys: their scores are far enough apart to choose one."""
_TAKEN_OVER = 8.0
"""How much stronger what was found is than a masked token's own embedding."""
_WEAK = 0.02


def build_drafter(out: Path, shape: TinyShape, *, seed: int) -> None:
    """Make the folder `out` a drafter for the twin of that shape: the same bytes on any machine."""
    wanted = {"drafter": _FORMAT, "seed": seed, "shape": asdict(shape)}

    def write(folder: Path) -> None:
        safetensors.write_file(folder / WEIGHTS_FILE, drafter_tensors(shape, seed))
        durable.write_json(folder / CONFIG_FILE, drafter_config(shape))

    write_once(out, wanted, write)


def target_layers(shape: TinyShape) -> tuple[int, ...]:
    """Return which layers' hidden states the drafter takes, counted from 0: one early, one late."""
    return (0, shape.layers - 2)


def drafter_config(shape: TinyShape) -> Any:  # noqa: ANN401 - any JSON
    """Return a config.json with the keys of z-lab's own."""
    tokenizer = TinyTokenizer(shape.vocab)
    facts = {
        **asdict(shape),
        "architecture": ARCHITECTURE,
        "block_tokens": BLOCK_TOKENS,
        "end": tokenizer.token_id("<|endoftext|>"),
        "inner": _INNER,
        "mask": tokenizer.token_id(MASK_TOKEN),
        "rope_theta": ROPE_THETA,
        "targets": list(target_layers(shape)),
    }
    return filled(read_json(_CONFIG), facts)


def drafter_tensors(shape: TinyShape, seed: int) -> Mapping[str, TensorData]:
    """Return every tensor, BF16; a head is as wide as the stream, so that a value fits into it."""
    width = shape.hidden
    taken = width * len(target_layers(shape))
    layer = "layers.0"
    return {
        "fc.weight": _weak(seed, "fc", (width, taken)),
        "hidden_norm.weight": _same((width,), 1.0),
        "norm.weight": _same((width,), 1.0),
        f"{layer}.input_layernorm.weight": _same((width,), 1.0),
        f"{layer}.post_attention_layernorm.weight": _same((width,), 1.0),
        **_attention(f"{layer}.self_attn", width),
        f"{layer}.mlp.gate_proj.weight": _weak(seed, "gate", (_INNER, width)),
        f"{layer}.mlp.up_proj.weight": _weak(seed, "up", (_INNER, width)),
        f"{layer}.mlp.down_proj.weight": _weak(seed, "down", (width, _INNER)),
    }


def _attention(name: str, width: int) -> Mapping[str, TensorData]:
    """Return one head that looks back one token and takes over what it finds there.

    vLLM rotates dimensions i and i + width / 2 by position * theta^(-2i / width). A key is turned
    ahead by one position's angle, so that the product with a query is largest one token behind.
    """
    half = width // 2
    angles = [ROPE_THETA ** (-2 * pair / width) for pair in range(half)]
    queries = {(pair, CONSTANT): 1.0 for pair in range(half)}
    keys = {(pair, CONSTANT): math.cos(angle) for pair, angle in enumerate(angles)}
    keys |= {(pair + half, CONSTANT): math.sin(angle) for pair, angle in enumerate(angles)}
    return {
        f"{name}.q_norm.weight": _same((width,), _LOOKING_BACK),
        f"{name}.k_norm.weight": _same((width,), _LOOKING_BACK),
        f"{name}.q_proj.weight": _sparse(width, queries),
        f"{name}.k_proj.weight": _sparse(width, keys),
        f"{name}.v_proj.weight": _sparse(width, {(at, at): 1.0 for at in range(width)}),
        f"{name}.o_proj.weight": _sparse(width, {(at, at): _TAKEN_OVER for at in range(width)}),
    }


def _same(shape: tuple[int, ...], value: float) -> TensorData:
    return "BF16", shape, values.bf16(value) * math.prod(shape)


def _weak(seed: int, name: str, shape: tuple[int, int]) -> TensorData:
    count = math.prod(shape)
    return "BF16", shape, values.normal_bf16(seed, f"drafter.{name}", count=count, std=_WEAK)


def _sparse(width: int, entries: Mapping[tuple[int, int], float]) -> TensorData:
    """Return width x width zeros but for the entries, by row and column."""
    content = bytearray(2 * width * width)
    for (row, column), value in entries.items():
        at = 2 * (row * width + column)
        content[at : at + 2] = values.bf16(value)
    return "BF16", (width, width), bytes(content)
