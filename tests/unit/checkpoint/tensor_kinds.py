"""How many tensors and bytes a checkpoint has of each kind and dtype, by its own headers."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from sparkdeploy.checkpoint.contents import read_config, read_tensors
from sparkdeploy.estimate.model import kinds_for


class Share(NamedTuple):
    """What a checkpoint has of one kind and dtype."""

    tensors: int
    size_bytes: int


def shares_of(folder: Path) -> dict[tuple[str, str], Share]:
    """Read every header of a checkpoint."""
    kind_of = kinds_for(read_config(folder))
    sizes = defaultdict(list)
    for name, located in read_tensors(folder).items():
        sizes[kind_of(name), located.info.dtype].append(located.info.size_bytes)
    return {key: Share(len(each), sum(each)) for key, each in sizes.items()}
