"""What a checkpoint is: its tensors counted by kind and dtype, from headers alone."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkdeploy.checkpoint import contents

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

KINDS = (
    ("mtp", re.compile(r"^mtp\.")),
    ("vision", re.compile(r"visual\.")),
    ("shared experts", re.compile(r"\.mlp\.shared_expert\.")),
    ("routed experts", re.compile(r"\.mlp\.experts\.")),
    ("attention", re.compile(r"\.(self_attn|linear_attn)\.")),
    ("embeddings", re.compile(r"\.embed_tokens\.")),
    ("LM head", re.compile(r"^lm_head\.")),
)
"""Kinds by the first pattern that is found in a name; the rest is norms and routers."""
REST = "norms, routers"


@dataclass(frozen=True, slots=True)
class Share:
    """The tensors of one kind and dtype."""

    kind: str
    dtype: str
    tensors: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """A checkpoint in numbers."""

    files: int
    tensors: int
    size_bytes: int
    quantization: str
    shares: tuple[Share, ...]


def inspect_checkpoint(folder: Path) -> Inspection:
    """Read every header and the configuration; raise CheckpointError when one is damaged."""
    tensors = contents.read_tensors(folder)
    config = contents.read_config(folder)
    counts: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    for name, located in tensors.items():
        key = (kind_of(name), located.info.dtype)
        counts[key] += 1
        sizes[key] += located.info.size_bytes
    shares = [Share(*key, counts[key], sizes[key]) for key in counts]
    return Inspection(
        files=len({located.file for located in tensors.values()}),
        tensors=len(tensors),
        size_bytes=sum(sizes.values()),
        quantization=_quantization(config),
        shares=tuple(sorted(shares, key=lambda share: -share.size_bytes)),
    )


def kind_of(name: str) -> str:
    """What a tensor belongs to."""
    return next((kind for kind, pattern in KINDS if pattern.search(name)), REST)


def _quantization(config: Mapping[str, object]) -> str:
    stated = config.get("quantization_config")
    return str(stated.get("quant_method")) if isinstance(stated, dict) else "none"
