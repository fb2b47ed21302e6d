"""Checkpoints of any family, as files: real headers, and no bytes behind them."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkdeploy.checkpoint.expected_tensors import expected_tensors
from sparkdeploy.checkpoint.safetensors import write_file
from sparkdeploy.checkpoint.tiny_model.build import config_files
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from tests.families import config

ELEMENT_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I32": 4}
NO_MATRIX = re.compile(
    r"(embed_tokens|embeddings|lm_head|gate|shared_expert_gate|router|conv1d|weights_proj)\.weight$"
    r"|_bias$"
)
Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Names with dtype and shape."""


def plain(family: str) -> Tensors:
    """Every tensor at 16 bits, under the name that published checkpoints have."""
    expected = expected_tensors(config(family))
    assert expected is not None, family
    return {
        name if name == "lm_head.weight" else f"model.{name}": ("BF16", shape)
        for name, shape in expected.items()
    }


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether quantisation packs a tensor."""
    return len(shape) > 1 and not NO_MATRIX.search(name)


def linears(family: str) -> set[str]:
    return {
        name
        for name, (_, shape) in plain(family).items()
        if is_matrix(name, shape) and len(shape) == 2
    }


def write(folder: Path, tensors: Tensors, found: Mapping[str, Any]) -> Path:
    """Write config.json and one file whose data is a hole of the right size."""
    folder.mkdir(parents=True, exist_ok=True)
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = ELEMENT_BYTES[dtype]
        for width in shape:
            size *= width
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    (folder / "config.json").write_text(json.dumps(found), encoding="utf-8")
    return folder


_SIGNS = bytes(0x3C if byte & 1 else 0xBC for byte in range(256))
"""The upper half of a small BF16 number, of either sign."""


def random_checkpoint(folder: Path, family: str) -> Path:
    """Write a model of 16 bits with small random weights, and the twin's tokenizer."""
    write_random(folder, "model.safetensors", plain(family), seed=family)
    (folder / "config.json").write_text(json.dumps(config(family)))
    for name, content in config_files(TinyShape()).items():
        if name.startswith("tokenizer"):
            (folder / name).write_text(json.dumps(content))
    return folder


def write_random(folder: Path, file: str, tensors: Tensors, seed: str) -> None:
    """Write BF16 tensors of small random values, the same ones each time."""
    folder.mkdir()
    numbers, made = random.Random(seed), {}
    for name, (dtype, shape) in tensors.items():
        values = bytearray(2 * math.prod(shape))
        values[0::2] = numbers.randbytes(len(values) // 2)
        values[1::2] = numbers.randbytes(len(values) // 2).translate(_SIGNS)
        made[name] = (dtype, shape, bytes(values))
    write_file(folder / file, made)


def _blocks(width: int, size: int) -> int:
    return -(-width // size)


def packed(family: str, method: str) -> tuple[Tensors, dict[str, Any]]:
    """Tensors with every matrix packed by a method, and the configuration that says so."""
    tensors, found, matrices = plain(family), config(family), linears(family)
    for name in matrices:
        _, (outputs, inputs) = tensors.pop(name)
        stem = name.removesuffix("weight")
        tensors |= _PACKERS[method](stem, outputs, inputs)
    return tensors, {**found, "quantization_config": STATED[method]}


def _fp8(stem: str, outputs: int, inputs: int) -> Tensors:
    scale = (_blocks(outputs, 128), _blocks(inputs, 128))
    return {
        f"{stem}weight": ("F8_E4M3", (outputs, inputs)),
        f"{stem}weight_scale_inv": ("F32", scale),
    }


def _gptq(stem: str, outputs: int, inputs: int) -> Tensors:
    groups = _blocks(inputs, 128)
    return {
        f"{stem}qweight": ("I32", (inputs // 8, outputs)),
        f"{stem}scales": ("BF16", (groups, outputs)),
        f"{stem}qzeros": ("I32", (groups, outputs // 8)),
    }


def _awq(stem: str, outputs: int, inputs: int) -> Tensors:
    groups = _blocks(inputs, 128)
    return {
        f"{stem}qweight": ("I32", (inputs, outputs // 8)),
        f"{stem}scales": ("BF16", (groups, outputs)),
        f"{stem}qzeros": ("I32", (groups, outputs // 8)),
    }


def _nvfp4(stem: str, outputs: int, inputs: int) -> Tensors:
    return {
        f"{stem}weight": ("U8", (outputs, inputs // 2)),
        f"{stem}weight_scale": ("F8_E4M3", (outputs, inputs // 16)),
        f"{stem}weight_scale_2": ("F32", ()),
    }


def _compressed_nvfp4(stem: str, outputs: int, inputs: int) -> Tensors:
    return {
        f"{stem}weight_packed": ("U8", (outputs, inputs // 2)),
        f"{stem}weight_scale": ("F8_E4M3", (outputs, inputs // 16)),
        f"{stem}weight_global_scale": ("F32", (1,)),
    }


_PACKERS = {
    "fp8": _fp8,
    "gptq": _gptq,
    "awq": _awq,
    "modelopt": _nvfp4,
    "compressed-tensors": _compressed_nvfp4,
}
STATED: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
}
METHODS = sorted(STATED)
