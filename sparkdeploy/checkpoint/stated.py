"""How much an overlay's config.json asks the plugin to convert."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkdeploy.checkpoint import contents
from sparkdeploy.errors import CheckpointError

GROUP = 128
"""Inputs of an output that share an INT4 scale, as in Intel's checkpoint."""
SHARED_EXPERTS = "shared_experts"


def shared_experts_block(int4_layers: int) -> dict[str, Any]:
    """Return what the plugin reads of shared experts: how many modules have to become INT4."""
    return {"dtype": "int4", "group": GROUP, "int4_layers": int4_layers}


def stated_shared_experts(folder: Path) -> int:
    """Return how many modules of shared experts become INT4; 0 where they stay as they are.

    Raises CheckpointError as `stated_counts` does.
    """
    return (*stated_counts(folder, SHARED_EXPERTS, ("int4_layers",)), 0)[0]


def stated_counts(folder: Path, part: str, keys: Sequence[str]) -> tuple[int, ...]:
    """Return the counts of one part of the conversion, in order; none where there is no such part.

    Raises CheckpointError when config.json cannot be read, or says something else than counts.
    """
    block = contents.read_config(folder)
    for key in ("quantization_config", "spark_hybrid", part):
        block = block.get(key) or {}
        if not isinstance(block, dict):
            raise CheckpointError(f"{folder}/config.json: {key} is not an object.")
    if not block:
        return ()
    counts = [block.get(key) for key in keys]
    if not all(type(count) is int for count in counts):
        raise CheckpointError(f"{folder}/config.json: {part} counts nothing.")
    return tuple(map(int, counts))  # type: ignore[arg-type]
