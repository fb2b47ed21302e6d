"""A draft layer's weights that become INT4 and FP8 while vLLM loads them: which, and how many."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkdeploy.checkpoint.contents import Located
from sparkdeploy.checkpoint.repo_files import printable
from sparkdeploy.errors import CheckpointError

GROUP = 128
"""Inputs of an output that share an INT4 scale, as in Intel's checkpoint."""
_UNPACKED = frozenset({"BF16", "F16"})
_DENSE = re.compile(
    r"mtp\.(?:fc|layers\.\d+\.(?:self_attn\.[qkvo]_proj"
    r"|mlp\.(?:shared_expert\.)?(?:gate|up|down)_proj))\.weight"
)
_EXPERTS = re.compile(
    r"mtp\.layers\.(\d+)\.mlp\.experts\.(?:\d+\.(?:gate|up|down)_proj\.weight|(?:gate_up|down)_proj)"
)
"""One by one, or all of a layer in one tensor."""


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """What a checkpoint has to shrink; the plugin has to say the same of what it converted."""

    int4_layers: int
    """Layers of routed experts."""
    fp8_layers: int
    """Matrices: eight of a layer with experts, `fc` included."""

    def as_block(self) -> dict[str, Any]:
        """Return it as the plugin reads it from config.json."""
        counts = {"int4_layers": self.int4_layers, "fp8_layers": self.fp8_layers}
        return {"experts": "int4", "group": GROUP, "dense": "fp8", **counts}


def draft_layer_of(name: str, tensors: Mapping[str, Located]) -> DraftWeights:
    """Count what the checkpoint called `name` has of a draft layer at 16 bits.

    Raises CheckpointError where there is none, where it is quantised already, and where groups
    of 128 do not divide an expert.
    """
    layers, dense = set(), 0
    for tensor, located in tensors.items():
        if not tensor.startswith("mtp."):
            continue
        info, expert = located.info, _EXPERTS.fullmatch(tensor)
        if info.dtype not in _UNPACKED | {"F32"}:
            raise CheckpointError(
                f"{name}: the draft layer is quantised already: {printable(tensor)} is "
                f"{printable(info.dtype)}.",
                hint="set checkpoint.mtp_weights: bf16, which leaves it as it is",
            )
        if expert is not None and info.shape[-1] % GROUP:
            raise CheckpointError(
                f"{name}: {printable(tensor)} is {list(info.shape)}, which groups of {GROUP} do "
                "not divide.",
                hint="set checkpoint.mtp_weights: bf16",
            )
        layers |= {expert[1]} if expert is not None else set()
        dense += _DENSE.fullmatch(tensor) is not None
    if not dense:
        raise CheckpointError(
            f"{name} has no draft layer whose weights could become INT4 and FP8.",
            hint="set checkpoint.mtp_weights: bf16",
        )
    return DraftWeights(len(layers), dense)
