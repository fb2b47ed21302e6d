"""The tensors of a checkpoint against those that its config.json promises."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sparkdeploy.checkpoint.repo_files import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sparkdeploy.checkpoint.safetensors import TensorInfo
    from sparkdeploy.checkpoint.tensors import Promised, Shape

_FLOATS: Final = frozenset({"BF16", "F16", "F32", "F8_E4M3", "F8_E5M2"})
_EMBEDDINGS: Final = ("embed_tokens.weight", "embeddings.weight")
_EXPERT: Final = re.compile(r"^(.*\.experts)\.\d+\.(gate_proj|up_proj|down_proj)\.weight$")
_FUSED: Final = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "down_proj": "down_proj"}
_NAMED = 3


def promise_problems(
    promised: Iterable[Promised], tensors: Mapping[str, TensorInfo]
) -> Iterator[str]:
    """Yield what is missing or has another shape; further tensors are nobody's business."""
    prefix = _prefix(tensors)
    missing = []
    for item in promised:
        found = _found(item, prefix, tensors)
        if found is None:
            missing.append(item.name)
        elif found.dtype in _FLOATS and not _fits(item.shape, found.shape):
            yield (
                f"{printable(found.name)} is {list(found.shape)}, config.json says "
                f"{list(item.shape)}"
            )
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        yield f"{', '.join(missing[:_NAMED])}{more} are missing"


def _prefix(tensors: Mapping[str, TensorInfo]) -> str:
    """What stands before the language model's names, by its embeddings; the shortest such name."""
    ends = [
        (len(name), name.removesuffix(end))
        for name in tensors
        for end in _EMBEDDINGS
        if name == end or name.endswith("." + end)
    ]
    return min(ends)[1] if ends else "model."


def _found(promised: Promised, prefix: str, tensors: Mapping[str, TensorInfo]) -> TensorInfo | None:
    name = promised.name
    if name == "lm_head.weight":
        heads = (it for it in tensors if it.endswith((name, "lm_head.qweight")))
        return next((tensors[it] for it in heads), None)
    return next((tensors[it] for it in _forms(prefix + name) if it in tensors), None)


def _forms(name: str) -> Iterator[str]:
    """Yield the names under which a tensor may be stored: as it is, packed, or fused."""
    yield name
    if name.endswith(".weight"):
        stem = name.removesuffix("weight")
        yield stem + "qweight"
        yield stem + "weight_packed"
    yield name + "_blocks"
    fused = _EXPERT.match(name)
    if fused:
        yield f"{fused[1]}.{_FUSED[fused[2]]}"
        yield f"{fused[1]}.{_FUSED[fused[2]]}.weight"
        yield f"{fused[1]}.{_FUSED[fused[2]]}_blocks"


def _fits(promised: Shape, stored: Shape) -> bool:
    """Experts that are fused into one tensor have one more dimension."""
    return stored == promised or len(stored) == len(promised) + 1
