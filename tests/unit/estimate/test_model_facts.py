"""Weight bytes by kind: from headers, derived, and shipped; all three must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sparkdeploy.checkpoint.contents import read_config, read_tensors
from sparkdeploy.checkpoint.safetensors import read_header
from sparkdeploy.checkpoint.twin.build import build_twin
from sparkdeploy.checkpoint.twin.shape import ExpertFormat, TwinShape
from sparkdeploy.errors import CheckpointError
from sparkdeploy.estimate.model_facts import (
    WeightKind,
    architecture_of,
    kind_of,
    read_shipped_facts,
    weights_of,
)
from tests.unit.conftest import REPOSITORY
from tests.unit.estimate.derived_weights import derive_weights

if TYPE_CHECKING:
    from pathlib import Path

FACTS = read_shipped_facts(REPOSITORY / "recipes" / "facts" / "models.yaml")
BIG = FACTS["Intel/Qwen3.5-122B-A10B-int4-AutoRound"]


@pytest.fixture(scope="module")
def int4_twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A twin in the real model's format, DeltaNet's two small projections packed as well."""
    out = tmp_path_factory.mktemp("int4") / "twin"
    shape = TwinShape(
        expert_format=ExpertFormat.INT4, linear_value_heads=32, linear_key_heads=2, vocab=320
    )
    build_twin(out, shape, seed=1)
    return out


def test_the_sum_of_kinds_is_the_bytes_of_the_files(int4_twin: Path) -> None:
    tensors = read_tensors(int4_twin).values()
    headers = [read_header(path) for path in int4_twin.glob("*.safetensors")]
    file_bytes = sum(header.file_size_bytes - header.data_offset for header in headers)
    assert sum(weights_of(item.info for item in tensors).values()) == file_bytes


def test_no_tensor_of_a_checkpoint_is_of_unknown_kind(int4_twin: Path) -> None:
    kinds = {kind_of(name) for name in read_tensors(int4_twin)}
    assert kinds == set(WeightKind) - {WeightKind.OTHER}


def test_derived_bytes_are_those_of_the_headers_kind_by_kind(int4_twin: Path) -> None:
    counted = weights_of(item.info for item in read_tensors(int4_twin).values())
    assert derive_weights(architecture_of(read_config(int4_twin))) == counted


@pytest.mark.parametrize("repo", sorted(FACTS))
def test_the_shipped_facts_are_what_their_formulas_give(repo: str) -> None:
    derived = derive_weights(FACTS[repo].architecture)
    if "fp8-hybrid" in repo:
        weights = derived[WeightKind.SHARED_EXPERTS] // 2
        derived = {**derived, WeightKind.SHARED_EXPERTS: weights + 2 * (weights // 128**2)}
    assert FACTS[repo].weight_bytes == derived


def test_the_122b_has_the_sizes_that_were_seen_in_the_field() -> None:
    """67.3 GB without MTP and 62.65 GiB loaded; MTP 2,523,663,360 weights and its norms."""
    mtp = BIG.weight_bytes[WeightKind.MTP_DENSE] + BIG.weight_bytes[WeightKind.MTP_EXPERTS]
    assert mtp == 2 * (2_523_663_360 + 15_872)
    assert (BIG.total_bytes - mtp) / 1e9 == pytest.approx(67.3, abs=0.05)
    assert (BIG.total_bytes - mtp) / 2**30 == pytest.approx(62.65, abs=0.1)


def test_a_config_without_layer_types_is_refused() -> None:
    with pytest.raises(CheckpointError, match="layer_types"):
        architecture_of({"text_config": {"hidden_size": 1}})
