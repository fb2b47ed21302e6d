"""Checkpoints that a test changes: their tensors and their configuration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkdeploy.checkpoint.contents import Described
from sparkdeploy.checkpoint.fp8_shard import Fp8Shard
from sparkdeploy.checkpoint.published import remote_tensors
from sparkdeploy.checkpoint.ranges import RangeSource, read_config
from sparkdeploy.checkpoint.safetensors import TensorData, read_header, write_file
from sparkdeploy.checkpoint.source import CheckpointSource
from sparkdeploy.checkpoint.standalone import build_standalone
from sparkdeploy.estimate.model import ModelFacts, facts_from


def ignore(_done_bytes: int, _total_bytes: int) -> None:
    """Show no progress."""


def facts_in(repo: str, source: RangeSource) -> ModelFacts:
    """Return the facts that files of `source` state; tensor data is never read."""
    tensors = remote_tensors(source)[0].values()
    return facts_from(repo, Described(read_config(source)), tensors, "headers")


def tensors_of(path: Path) -> dict[str, TensorData]:
    """Every tensor of a file, with its bytes."""
    header = read_header(path)
    data = path.read_bytes()[header.data_offset :]
    return {
        name: (info.dtype, info.shape, data[info.begin : info.end])
        for name, info in header.tensors.items()
    }


def edit_tensors(path: Path, change: Callable[[dict[str, TensorData]], object]) -> list[str]:
    """Write a file anew after a change of its tensors, and return their names."""
    tensors = tensors_of(path)
    change(tensors)
    write_file(path, tensors)
    return list(tensors)


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write a file of JSON anew after a change of its content."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def standalone(
    source: CheckpointSource, shard: Fp8Shard, out: Path, *, overwrite: bool = False
) -> None:
    """Build a standalone checkpoint."""
    build_standalone(source, shard, out, overwrite=overwrite, on_progress=ignore)
