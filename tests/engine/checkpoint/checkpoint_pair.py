"""A pair of repositories: INT4 with 16-bit shared experts, and FP8, both in shards.

The names are the real ones and lie among one another as they do there; the bytes are random.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkdeploy.checkpoint.contents import ModelSizes, model_sizes, mtp_names, shared_expert_shapes
from sparkdeploy.checkpoint.fp8 import expected_fp8
from sparkdeploy.checkpoint.safetensors import DTYPE_BITS, TensorInfo, header_bytes, read_header

Spec = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape."""
_BLOCK = random.Random(20261121).randbytes(8 << 20)


@dataclass(frozen=True)
class PairShape:
    """How large a pair is: about `layers * experts * 3` expert tensors of `expert_bytes` each."""

    layers: int = 48
    hidden: int = 512
    shared_intermediate: int = 256
    vocab: int = 4096
    experts: int = 32
    expert_bytes: int = 640_000
    fp8_expert_bytes: int = 160_000
    shards: int = 14


SMALL = PairShape(layers=8, experts=4, expert_bytes=40_000, fp8_expert_bytes=20_000, shards=4)
TWENTIETH = PairShape()
"""A twentieth of the 122B's 72 GB, and FP8 tensors of 18.9 MB among 1 GB."""


def build_pair(folder: Path, shape: PairShape) -> tuple[Path, Path]:
    """Make `folder`/int4 and `folder`/fp8, the same bytes each time; return both."""
    int4, fp8 = folder / "int4", folder / "fp8"
    config = _config(shape)
    sizes = model_sizes(config)
    shared = [(name, "BF16", size) for name, size in shared_expert_shapes(sizes)]
    embeddings: list[Spec] = [
        ("lm_head.weight", "BF16", (shape.vocab, shape.hidden)),
        ("model.language_model.embed_tokens.weight", "BF16", (shape.vocab, shape.hidden)),
    ]
    experts = list(_experts(shape, "qweight", "I32", shape.expert_bytes // 4))
    _write_shards(int4, _interleaved([*embeddings, *shared, *experts]), shape.shards)
    _write(int4 / "model_extra_tensors.safetensors", list(_mtp(sizes)))
    _write_index(int4, config)
    fp8_tensors: list[Spec] = [
        (name, "F8_E4M3" if name.endswith(".weight") else "BF16", shape)
        for name, shape in expected_fp8(sizes).items()
    ]
    fillers = list(_experts(shape, "weight", "F8_E4M3", shape.fp8_expert_bytes))
    _write_shards(fp8, _interleaved([*fp8_tensors, *fillers]), shape.shards)
    _write_index(fp8, config)
    return int4, fp8


def _config(shape: PairShape) -> dict[str, object]:
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": {
            "num_hidden_layers": shape.layers,
            "hidden_size": shape.hidden,
            "vocab_size": shape.vocab,
            "num_experts": shape.experts,
            "shared_expert_intermediate_size": shape.shared_intermediate,
            "mtp_num_hidden_layers": 1,
        },
        "quantization_config": {"quant_method": "auto-round", "bits": 4},
    }


def _experts(shape: PairShape, suffix: str, dtype: str, elements: int) -> Iterable[Spec]:
    for layer, expert in itertools.product(range(shape.layers), range(shape.experts)):
        for linear in ("gate_proj", "up_proj", "down_proj"):
            prefix = f"model.language_model.layers.{layer}.mlp.experts.{expert}.{linear}"
            yield f"{prefix}.{suffix}", dtype, (elements,)


def _mtp(sizes: ModelSizes) -> Iterable[Spec]:
    for name in sorted(mtp_names(sizes)):
        yield name, "BF16", (sizes.hidden, 8)


def _interleaved(specs: Iterable[Spec]) -> list[Spec]:
    """Sorted by name, which is how the real shards have them: wanted among unwanted."""
    return sorted(specs)


def _write_shards(folder: Path, specs: Sequence[Spec], count: int) -> None:
    size = -(-len(specs) // count)
    for number in range(count):
        name = f"model-{number + 1:05}-of-{count:05}.safetensors"
        _write(folder / name, specs[number * size : (number + 1) * size])


def _placed(specs: Sequence[Spec]) -> tuple[bytes, int]:
    """Return the header of a file, and how many bytes of tensors follow it."""
    infos: list[TensorInfo] = []
    position = 0
    for name, dtype, shape in specs:
        end = position + math.prod(shape) * DTYPE_BITS[dtype] // 8
        infos.append(TensorInfo(name, dtype, shape, position, end))
        position = end
    return header_bytes(infos, {"format": "pt"}), position


def _write(path: Path, specs: Sequence[Spec]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header, left = _placed(specs)
    with path.open("wb") as file:
        file.write(header)
        # Every file begins elsewhere in the block, so that no two are alike.
        at = sum(path.name.encode()) * 4096 % len(_BLOCK)
        while left:
            chunk = _BLOCK[at : at + left]
            file.write(chunk)
            left -= len(chunk)
            at = 0


def _write_index(folder: Path, config: Mapping[str, object]) -> None:
    headers = {path.name: read_header(path) for path in sorted(folder.glob("*.safetensors"))}
    places = {name: file for file, header in headers.items() for name in header.tensors}
    total = sum(t.size_bytes for header in headers.values() for t in header.tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
