"""Packed weights and their scales against one another and against the quantization config.

Layouts are those that vLLM loads (0.25.1 to 0.33): FP8 by blocks, rows or whole tensors; GPTQ and
AutoRound; AWQ; compressed-tensors; ModelOpt's NVFP4; MXFP4. A matrix is outputs x inputs.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from sparkdeploy.checkpoint.repo_files import printable, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sparkdeploy.checkpoint.safetensors import TensorInfo

KNOWN_METHODS: Final = frozenset(
    {"fp8", "gptq", "auto-round", "awq", "compressed-tensors", "modelopt", "modelopt_fp4", "mxfp4"}
)
FP8: Final = frozenset({"F8_E4M3", "F8_E5M2"})
_SUFFIXES: Final = (
    "weight_global_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_packed",
    "weight_scale_2",
    "weight_scale",
    "weight_shape",
    "weight_g_idx",
    "input_global_scale",
    "input_scale",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight",
)
_NVFP4_GROUP = 16
_MXFP4_GROUP_BYTES = 16

Parts = dict[str, "TensorInfo"]
Shape = tuple[int, ...]


def method_of(config: Mapping[str, Any]) -> str | None:
    """Return the `quant_method`; None for a checkpoint of plain floats."""
    stated = config.get("quantization_config")
    if not isinstance(stated, dict):
        return None
    method = stated.get("quant_method")
    return method if isinstance(method, str) else ""


def quantisation_problems(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> Iterator[str]:
    """Yield what does not fit together; nothing for methods that are not known."""
    method = method_of(config)
    stems = _stems(tensors)
    if method is None:
        yield from _plain(stems)
    elif method in KNOWN_METHODS:
        stated = config["quantization_config"]
        for stem, parts in stems.items():
            for problem in _of_stem(parts, stated):
                yield f"{printable(stem)}: {problem}"
        yield from _mxfp4(tensors)


def _stems(tensors: Mapping[str, TensorInfo]) -> Mapping[str, Parts]:
    found: defaultdict[str, Parts] = defaultdict(dict)
    for name, info in tensors.items():
        stem, _, last = name.rpartition(".")
        if last in _SUFFIXES:
            found[stem][last] = info
    return found


def _plain(stems: Mapping[str, Parts]) -> Iterator[str]:
    packed = [
        stem
        for stem, parts in stems.items()
        if "qweight" in parts or "weight_packed" in parts or _is_fp8(parts.get("weight"))
    ]
    if packed:
        yield (
            f"{len(packed)} matrices are packed, {printable(packed[0])} among them, and "
            "config.json has no quantization_config"
        )


def _is_fp8(info: TensorInfo | None) -> bool:
    return info is not None and info.dtype in FP8


def _of_stem(parts: Parts, stated: Mapping[str, Any]) -> Iterator[str]:
    weight = parts.get("weight")
    if "qweight" in parts:
        yield from _by_groups(parts, stated)
    elif "weight_packed" in parts:
        yield from _packed(parts)
    elif weight is not None and weight.dtype in FP8:
        yield from _fp8(parts, weight, stated)
    elif weight is not None and weight.dtype == "U8" and len(weight.shape) == 2:
        yield from _nvfp4(weight, parts.get("weight_scale"))


def _fp8(parts: Parts, weight: TensorInfo, stated: Mapping[str, Any]) -> Iterator[str]:
    scale = parts.get("weight_scale_inv") or parts.get("weight_scale")
    if scale is None:
        yield "its FP8 weight has no scale"
        return
    wanted: set[Shape] = {(), (1,), weight.shape[:-1], (*weight.shape[:-1], 1)}
    block = _block_of(stated)
    if block and len(weight.shape) > 1:
        tiles = tuple(-(-n // size) for n, size in zip(weight.shape[-2:], block, strict=True))
        wanted = {(*weight.shape[:-2], *tiles)}
    if scale.shape not in wanted:
        yield f"its scale is {list(scale.shape)}, which does not fit a weight {list(weight.shape)}"


def _block_of(stated: Mapping[str, Any]) -> tuple[int, ...]:
    """Outputs and inputs that share a scale; empty where the configuration states no blocks."""
    block = stated.get("weight_block_size")
    if not isinstance(block, list) or len(block) != 2:
        return ()
    return tuple(block) if all(type(size) is int and size > 0 for size in block) else ()


def _nvfp4(weight: TensorInfo, scale: TensorInfo | None) -> Iterator[str]:
    rows, halves = weight.shape
    if scale is None:
        yield "its packed weight has no scale"
    elif scale.shape != (rows, -(-2 * halves // _NVFP4_GROUP)):
        yield f"its scale is {list(scale.shape)}, which does not fit {2 * halves} inputs"


def _packed(parts: Parts) -> Iterator[str]:
    weight, scale = parts["weight_packed"], parts.get("weight_scale")
    if scale is None:
        yield "its packed weight has no scale"
    elif weight.dtype == "U8":
        yield from _nvfp4(weight, scale)
    elif scale.shape[:1] != weight.shape[:1]:
        yield f"its scale has {shown(list(scale.shape))} for a weight {list(weight.shape)}"


def _by_groups(parts: Parts, stated: Mapping[str, Any]) -> Iterator[str]:
    weight, scales, zeros = parts["qweight"], parts.get("scales"), parts.get("qzeros")
    if scales is None:
        yield "its packed weight has no scales"
        return
    bits, group = stated.get("bits"), stated.get("group_size")
    if not _is_uniform(stated) or type(bits) is not int or bits not in {2, 3, 4, 8}:
        return
    if any(len(it.shape) != 2 for it in (weight, scales)):
        yield f"its packed weight is {list(weight.shape)}, no matrix"
        return
    is_awq = stated.get("quant_method") == "awq" or "awq" in str(stated.get("packing_format"))
    rows, columns = weight.shape
    inputs, outputs = (rows, columns * 32 // bits) if is_awq else (rows * 32 // bits, columns)
    groups = 1 if type(group) is not int or group <= 0 else -(-inputs // group)
    if scales.shape != (groups, outputs):
        yield f"its scales are {list(scales.shape)}, where {[groups, outputs]} fit its weight"
    if zeros is not None and zeros.shape != (groups, outputs * bits // 32):
        yield f"its zero points are {list(zeros.shape)}, where {[groups, outputs * bits // 32]} fit"


def _is_uniform(stated: Mapping[str, Any]) -> bool:
    """Whether all layers have the bits and groups that stand on top."""
    return not any(stated.get(key) for key in ("extra_config", "dynamic", "layer_config"))


def _mxfp4(tensors: Mapping[str, TensorInfo]) -> Iterator[str]:
    for name, blocks in tensors.items():
        if not name.endswith("_blocks"):
            continue
        scales = tensors.get(name.removesuffix("_blocks") + "_scales")
        if scales is None:
            yield f"{printable(name)} has no scales"
        elif (*scales.shape, _MXFP4_GROUP_BYTES) != blocks.shape:
            yield (
                f"{printable(name)}: its scales are {list(scales.shape)}, which does not fit "
                f"{list(blocks.shape)}"
            )
