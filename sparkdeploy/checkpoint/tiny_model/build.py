"""Write a twin to disk, a drafter for it, and its FP8 repository.

The drafter has DFlash's architecture, one narrow layer, and weights that guess sensibly. Names,
shapes and configuration are those that vLLM's `qwen3_dflash.py` loads (0.25.1 to 0.33.0). The head
and the embeddings are the target's: a drafter of z-lab's ships neither. `fc` joins the hidden
states of `target_layer_ids`; vLLM takes them after the layers of those numbers.

The layer looks back one token: its queries and keys read a constant of the embeddings, and their
rotation is such that they meet one position apart. The first of the masked tokens so finds the
embedding of the last known one, which the target's head continues as MTP's layer would (see
`grammar`): right about as often as a bit is set. The masked tokens behind it find a masked token,
and guess nothing: of twelve drafts about one in twenty is accepted.

One layer and no more: vLLM puts a drafter's layers into one group of its cache, whose groups have
as many layers as the rarest kind has, and a twin of four layers has one of full attention.
"""

import bisect
import contextlib
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from sparkdeploy.checkpoint import durable
from sparkdeploy.checkpoint.contents import (
    CONFIG_FILE,
    INDEX_FILE,
    index_content,
    model_sizes,
    read_config,
    read_tensors,
    shared_expert_shapes,
)
from sparkdeploy.checkpoint.fp8 import BLOCK, SCALE_SUFFIX, WEIGHT_SUFFIX, decode_bf16, e4m3_values
from sparkdeploy.checkpoint.safetensors import TensorData, read_header, write_file
from sparkdeploy.checkpoint.tiny_model import tensors, values
from sparkdeploy.checkpoint.tiny_model.grammar import CONSTANT, Grammar
from sparkdeploy.checkpoint.tiny_model.shape import FULL_ATTENTION_INTERVAL, TinyShape
from sparkdeploy.checkpoint.tiny_model.tokenizer import TinyTokenizer
from sparkdeploy.errors import CheckpointError
from sparkdeploy.stored_json import read_json

IDENTITY_FILE = "twin.json"
MTP_FILE = "model_extra_tensors.safetensors"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
_FOLDER = Path(__file__).parent
_KEPT = {"bits": 16, "data_type": "float"}

_FORMAT = 4
"""Counts up whenever the same shape and seed give other bytes."""

ARCHITECTURE: Final = "DFlashDraftModel"
BLOCK_TOKENS: Final = 16
"""As z-lab's drafters were trained: one known token and fifteen masked ones."""
ROPE_THETA: Final = 10_000_000.0
_DRAFTER_FORMAT = 1
_INNER = 256
_LOOKING_BACK = 5.0
"""Weight of the norms of queries and keys: their scores are far enough apart to choose one."""
_TAKEN_OVER = 8.0
"""How much stronger what was found is than a masked token's own embedding."""
_WEAK = 0.02

FP8_MAX = 448.0
SHARDS = 2
_VALUES = e4m3_values()
_MIDPOINTS = [(low + high) / 2 for low, high in itertools.pairwise(_VALUES)]


def build_tiny_model(out: Path, shape: TinyShape, *, seed: int) -> None:
    """Make the folder `out` a twin: the same bytes for the same shape and seed, on any machine."""
    identity = {"format": _FORMAT, "seed": seed, "shape": asdict(shape)}
    write_once(out, identity, lambda folder: _write_twin(folder, shape, seed))


def write_once(out: Path, identity: object, write: Callable[[Path], None]) -> None:
    """Let `write` fill the folder `out`, all at once, unless it did so for the same identity."""
    with contextlib.suppress(OSError, ValueError):
        if read_json(out / IDENTITY_FILE) == identity:
            return
    try:
        with durable.staged_folder(out) as staging:
            write(staging)
            durable.write_json(staging / IDENTITY_FILE, identity)
    except OSError as error:
        raise CheckpointError(f"{out}: the twin cannot be written: {error}") from error


def _write_twin(folder: Path, shape: TinyShape, seed: int) -> None:
    for name, shard in _shards(shape, seed).items():
        write_file(folder / name, shard)
    files = {INDEX_FILE: index_content(read_tensors(folder)), **config_files(shape)}
    durable.write_text(folder / CHAT_TEMPLATE_FILE, files["tokenizer_config.json"]["chat_template"])
    for name, content in files.items():
        durable.write_json(folder / name, content)


def _shards(shape: TinyShape, seed: int) -> dict[str, tensors.Tensors]:
    """Two numbered shards, so that nothing relies on one, and the draft layer in Intel's file."""
    text = Grammar(shape, seed, TinyTokenizer(shape.vocab).printed_ids)
    main = {**tensors.language_tensors(text), **tensors.vision_tensors(shape, seed)}
    items = list(main.items())
    middle = len(items) // 2
    return {
        "model-00001-of-00002.safetensors": dict(items[:middle]),
        "model-00002-of-00002.safetensors": dict(items[middle:]),
        MTP_FILE: tensors.mtp_tensors(shape, seed),
    }


def config_files(shape: TinyShape) -> dict[str, Any]:
    """The content of every JSON file that describes a twin, by its name.

    In files.json `$NAME` stands for what shape and tokenizer decide. Sampling settings are the
    model's own. An image has 64 tokens at most, so that one fits a context of a few hundred.
    """
    tokenizer = TinyTokenizer(shape.vocab)
    templates = read_json(_FOLDER / "files.json")
    facts = {
        **tokenizer.special_ids,
        **asdict(shape),
        "full_attention_interval": FULL_ATTENTION_INTERVAL,
        "layer_types": list(shape.layer_types),
        "vision_intermediate": 2 * shape.vision_hidden,
        "vision_patch": tensors.VISION_PATCH,
        "vision_positions": tensors.VISION_POSITIONS,
        "blocks": f"{tensors.TEXT_PREFIX}.layers",
        "kept_modules": {name: dict(_KEPT) for name in _kept_modules(shape)},
        "chat_template": (_FOLDER / CHAT_TEMPLATE_FILE).read_text(encoding="utf-8"),
        **tokenizer.facts(),
    }
    facts["quantization"] = filled(templates["quantization_config.json"], facts)
    return {name: filled(template, facts) for name, template in templates.items()}


def filled(template: object, facts: Mapping[str, object]) -> Any:  # noqa: ANN401 - any JSON
    """Put the fact of its name in the place of every `$NAME`."""
    if isinstance(template, dict):
        return {key: filled(value, facts) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, facts) for value in template]
    if isinstance(template, str) and template.startswith("$"):
        return facts[template[1:]]
    return template


def _kept_modules(shape: TinyShape) -> list[str]:
    """Linear layers left at 16 bits, by their names in the checkpoint."""
    names = ["lm_head", "mtp.fc"]
    names += [f"mtp.layers.0.self_attn.{name}_proj" for name in "qkvo"]
    names += _kept_in_mlp("mtp.layers.0.mlp")
    for layer, kind in enumerate(shape.layer_types):
        prefix = f"{tensors.TEXT_PREFIX}.layers.{layer}"
        names += _kept_in_mlp(f"{prefix}.mlp")
        if shape.expert_format == "bf16":
            names.append(f"{prefix}.mlp.experts")
        if kind == "linear_attention" and not shape.in_proj_ab_is_packed:
            names += [f"{prefix}.linear_attn.in_proj_a", f"{prefix}.linear_attn.in_proj_b"]
    for block in range(shape.vision_depth):
        prefix = f"model.visual.blocks.{block}"
        names += [f"{prefix}.attn.qkv", f"{prefix}.attn.proj"]
        names += [f"{prefix}.mlp.linear_fc1", f"{prefix}.mlp.linear_fc2"]
    return [*names, "model.visual.merger.linear_fc1", "model.visual.merger.linear_fc2"]


def _kept_in_mlp(mlp: str) -> list[str]:
    shared = [f"{mlp}.shared_expert.{name}_proj" for name in ("gate", "up", "down")]
    return [f"{mlp}.gate", f"{mlp}.shared_expert_gate", *shared]


def build_drafter(out: Path, shape: TinyShape, *, seed: int) -> None:
    """Make the folder `out` a drafter for the twin of that shape: the same bytes on any machine."""
    wanted = {"drafter": _DRAFTER_FORMAT, "seed": seed, "shape": asdict(shape)}

    def write(folder: Path) -> None:
        write_file(folder / "model.safetensors", drafter_tensors(shape, seed))
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
        "mask": tokenizer.token_id("<|fim_pad|>"),
        "rope_theta": ROPE_THETA,
        "targets": list(target_layers(shape)),
    }
    return filled(read_json(_FOLDER / "drafter.json"), facts)


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


def build_tiny_fp8_model(out: Path, twin: Path) -> None:
    """Make `out` an FP8 repository for the twin in `twin`: its shared experts, among filler."""
    if (out / INDEX_FILE).is_file():
        return
    out.mkdir(parents=True, exist_ok=True)
    config = read_config(twin)
    located = read_tensors(twin)
    shards: list[dict[str, TensorData]] = [{} for _ in range(SHARDS)]
    sizes = model_sizes(config)
    for number, (name, shape) in enumerate(shared_expert_shapes(sizes)):
        path = twin / located[name].file
        with path.open("rb") as file:
            content = read_header(path).read(file, located[name].info)
        weight, scales = quantize(content, *shape)
        shard = shards[number % SHARDS]
        blocks = (-(-shape[0] // BLOCK), -(-shape[1] // BLOCK))
        shard[name] = ("F8_E4M3", shape, weight)
        shard[name.removesuffix(WEIGHT_SUFFIX) + SCALE_SUFFIX] = ("BF16", blocks, scales)
        shard[name.replace("shared_expert", "experts.0")] = ("F8_E4M3", (8, 16), bytes(128))
    for number, shard in enumerate(shards, start=1):
        write_file(out / f"model-{number:05}-of-{SHARDS:05}.safetensors", shard)
    quantization = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    durable.write_json(out / CONFIG_FILE, {**config, "quantization_config": quantization})
    durable.write_json(out / INDEX_FILE, index_content(read_tensors(out)))


def quantize(content: bytes, rows: int, columns: int) -> tuple[bytes, bytes]:
    """BF16 values to e4m3 bytes and the BF16 scales of their blocks, both row by row."""
    weights = decode_bf16(content)
    codes = bytearray(rows * columns)
    scales = bytearray()
    for top in range(0, rows, BLOCK):
        for left in range(0, columns, BLOCK):
            places = [
                row * columns + column
                for row in range(top, min(top + BLOCK, rows))
                for column in range(left, min(left + BLOCK, columns))
            ]
            amax = max(abs(weights[place]) for place in places)
            encoded = values.bf16(max(amax, 1e-4) / FP8_MAX)
            scale = decode_bf16(encoded)[0]
            scales += encoded
            known = {value: encode_e4m3(value / scale) for value in {weights[p] for p in places}}
            for place in places:
                codes[place] = known[weights[place]]
    return bytes(codes), bytes(scales)


def encode_e4m3(value: float) -> int:
    """The code of the nearest value; beyond the largest it is the largest."""
    size = abs(value)
    code = bisect.bisect_left(_MIDPOINTS, size)
    if code < len(_MIDPOINTS) and size == _MIDPOINTS[code]:
        code += code & 1
    return code | (0x80 if value < 0 else 0)
