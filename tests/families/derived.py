"""Weight bytes of a model by its config.json alone: every tensor it promises, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sparkdeploy.checkpoint.contents import Described, method_of
from sparkdeploy.checkpoint.expected_tensors import expected_tensors
from sparkdeploy.checkpoint.safetensors import TensorInfo
from sparkdeploy.estimate.model import ModelFacts, facts_from
from tests.families.checkpoints import is_matrix

ORIGIN: Final = "derived from config.json (no header was read); towers and draft layers left out"
_BLOCK: Final = 128
_PREFIX: Final = "model."


def derived_facts(repo: str, config: Mapping[str, Any]) -> ModelFacts | None:
    """Return what config.json alone says of a model; None where its tensors are not known.

    Quantised matrices are counted by their method's rule where all of them follow it: INT4 by
    groups, FP8 by blocks, MXFP4 experts. Raises CheckpointError and UnknownArchitectureError as
    `expected_tensors` does.
    """
    method, expected = method_of(config) or "", expected_tensors(config)
    if expected is None or method not in {"", "fp8", "mxfp4", "gptq", "auto-round", "awq"}:
        return None
    sized = (_sized(name, shape, config, method) for name, shape in expected.items())
    return facts_from(repo, Described(config), sized, ORIGIN)


def _sized(name: str, shape: tuple[int, ...], config: Mapping[str, Any], method: str) -> TensorInfo:
    elements, matrix = 1, is_matrix(name, shape)
    for width in shape:
        elements *= width
    size_bytes, dtype = 2 * elements, "BF16"
    if matrix and method == "mxfp4" and ".experts." in name:
        size_bytes, dtype = elements // 2 + elements // 32, "U8"
    elif matrix and method == "fp8":
        size_bytes, dtype = elements + 4 * _blocks(shape), "F8_E4M3"
    elif matrix and method in {"gptq", "auto-round", "awq"}:
        size_bytes, dtype = _packed(shape, config["quantization_config"]), "I32"
    whole = name if name.startswith("lm_head") else _PREFIX + name
    return TensorInfo(whole, dtype, shape, 0, size_bytes)


def _blocks(shape: tuple[int, ...]) -> int:
    outputs, inputs = shape[-2:]
    return -(-outputs // _BLOCK) * -(-inputs // _BLOCK)


def _packed(shape: tuple[int, ...], quantisation: Mapping[str, Any]) -> int:
    """A group of inputs has a 16-bit scale and a zero point of the weights' own bits."""
    outputs, inputs = shape[-2:]
    bits = _number(quantisation, "bits", 4)
    groups = -(-inputs // max(1, _number(quantisation, "group_size", _BLOCK)))
    return outputs * inputs * bits // 8 + groups * outputs * 2 + groups * outputs * bits // 8


def _number(quantisation: Mapping[str, Any], name: str, default: int) -> int:
    found = quantisation.get(name, default)
    return found if type(found) is int and 0 < found < 1 << 16 else default
