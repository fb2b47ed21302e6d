"""Weight bytes by kind: from headers, derived, and shipped; all three must agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkdeploy.checkpoint.architecture import architecture_of
from sparkdeploy.checkpoint.contents import Described, read_config, read_tensors
from sparkdeploy.checkpoint.published import shipped_entry
from sparkdeploy.checkpoint.safetensors import read_header
from sparkdeploy.checkpoint.tiny_model.build import build_tiny_model
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate.model import ModelFacts, WeightKind, facts_from
from tests.families.derived import derived_facts
from tests.unit.estimate.shipped import MODELS


@pytest.fixture(scope="module")
def int4_twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A twin in the real model's format, DeltaNet's two small projections packed as well."""
    out = tmp_path_factory.mktemp("int4") / "twin"
    shape = TinyShape(expert_format="int4", linear_value_heads=32, linear_key_heads=2, vocab=320)
    build_tiny_model(out, shape, seed=1)
    return out


def facts_of(folder: Path) -> ModelFacts:
    tensors = (item.info for item in read_tensors(folder).values())
    return facts_from("a/b", Described(read_config(folder)), tensors, "a test")


def test_the_sum_of_kinds_is_the_bytes_of_the_files(int4_twin: Path) -> None:
    headers = [read_header(path) for path in int4_twin.glob("*.safetensors")]
    file_bytes = sum(header.file_size_bytes - header.data_offset for header in headers)
    assert facts_of(int4_twin).total_bytes == file_bytes


def test_no_tensor_of_a_checkpoint_is_of_unknown_kind(int4_twin: Path) -> None:
    assert WeightKind.OTHER not in facts_of(int4_twin).weight_bytes


QUOTED = tuple(repo for repo in sorted(MODELS) if "quoted" in shipped_entry(repo)["weight_bytes"])
"""Those whose configuration and size are as others quote them."""
COUNTED = tuple(
    repo
    for repo in sorted(MODELS)
    if MODELS[repo].weight_bytes.get(WeightKind.VISION) and repo not in QUOTED
)
"""Those whose formulas count towers and draft layers; the others are of estimate/derived.py."""
SMALLER_IN_MEMORY = {
    "local-inference-lab/Qwen3.8-Flash-Next-NVFP4": 28_800_138_240,
    "nvidia/MiniMax-M2.7-NVFP4": 5_460_983_808,
    "nvidia/Qwen3.8-Flash-Next-NVFP4": 51_200_245_760,
}
"""Bytes of files that no GPU holds: half of attention in F32, tables on the SSD."""


@pytest.mark.parametrize("repo", QUOTED)
def test_the_kinds_of_a_quoted_size_come_to_that_size(repo: str) -> None:
    size = shipped_entry(repo)["size_bytes"]
    counted = MODELS[repo].total_bytes + SMALLER_IN_MEMORY.get(repo, 0)
    assert counted == pytest.approx(size, rel=0.001)
    assert shipped_entry(repo)["source"]


NVFP4_EXPERTS = {
    # layers with experts, experts, hidden width, width of an expert, matrices of an expert
    "nvidia/MiniMax-M2.7-NVFP4": (62, 256, 3072, 1536, 3),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": (40, 512, 1024, 2688, 2),
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": (23, 128, 2688, 1856, 2),
    "nvidia/Qwen3.6-35B-A3B-NVFP4": (40, 256, 2048, 512, 3),
    "nvidia/Qwen3.8-Flash-Next-NVFP4": (48, 512, 2560, 640, 3),
    "local-inference-lab/GLM-5.3-Flash-NVFP4-Spark": (42, 288, 4096, 2048, 3),
}


@pytest.mark.parametrize("repo", sorted(NVFP4_EXPERTS))
def test_experts_in_nvfp4_have_four_bits_and_a_scale_for_sixteen(repo: str) -> None:
    layers, experts, hidden, width, matrices = NVFP4_EXPERTS[repo]
    elements = layers * experts * matrices * hidden * width
    # Two scales of four bytes a matrix are within the tolerance.
    counted = elements // 2 + elements // 16
    assert MODELS[repo].weight_bytes[WeightKind.EXPERTS] == pytest.approx(counted, rel=1e-4)


@pytest.mark.parametrize("repo", sorted(set(MODELS) - set(COUNTED) - set(QUOTED)))
def test_the_other_shipped_facts_are_derived_from_their_configuration(repo: str) -> None:
    derived = derived_facts(repo, MODELS[repo].config)
    assert derived is not None
    assert derived.weight_bytes == MODELS[repo].weight_bytes
    assert shipped_entry(repo)["size_bytes"] == derived.total_bytes


def test_a_config_without_layers_is_refused() -> None:
    with pytest.raises(CheckpointError, match="num_hidden_layers is missing"):
        architecture_of({"model_type": "llama"})
