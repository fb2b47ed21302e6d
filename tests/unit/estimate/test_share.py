"""What one rank holds of weights and cache: laws, and the figures of the 122B."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.estimate.kv_cache import CacheLayout, layout_of, stage_ranges
from sparkdeploy.estimate.memory import budget_warnings, make_budget
from sparkdeploy.estimate.model import (
    ModelFacts,
    WeightKind,
    embedding_bytes,
    facts_of_rank,
    facts_of_step,
    share_of_weights,
)
from sparkdeploy.recipe.load import load_recipe
from tests.unit.conftest import SHIPPED
from tests.unit.estimate.shipped import BIG, MODELS, SPARK

KNOWN = st.sampled_from([None, *MODELS.values()])
SIZES = st.integers(1, 16)
TOTALS = st.integers(0, 2**40)


def share(total_bytes: int, facts: ModelFacts | None, tensor: int, pipeline: int) -> int:
    """What one rank holds of a model: by its facts, or without them by its size alone."""
    if facts is None:
        return share_of_weights(total_bytes, tensor * pipeline, 2**30)
    held = facts_of_rank(facts, tensor_parallel=tensor, pipeline_parallel=pipeline)
    return -(-total_bytes * held.total_bytes // facts.total_bytes)


@given(TOTALS, KNOWN)
def test_one_rank_alone_holds_everything(total_bytes: int, facts: ModelFacts | None) -> None:
    assert share(total_bytes, facts, 1, 1) == total_bytes


@given(TOTALS, KNOWN, SIZES, SIZES)
def test_all_ranks_together_hold_at_least_the_model(
    total_bytes: int, facts: ModelFacts | None, tensor: int, pipeline: int
) -> None:
    held = share(total_bytes, facts, tensor, pipeline)
    assert held * tensor * pipeline >= total_bytes
    assert held <= total_bytes


@given(TOTALS, KNOWN, SIZES, SIZES)
def test_more_ranks_never_hold_more_each(
    total_bytes: int, facts: ModelFacts | None, tensor: int, pipeline: int
) -> None:
    held = share(total_bytes, facts, tensor, pipeline)
    assert share(total_bytes, facts, tensor + 1, pipeline) <= held
    assert share(total_bytes, facts, tensor, pipeline + 1) <= held
    assert share(total_bytes + 1, facts, tensor, pipeline) >= held


@given(SIZES)
def test_embeddings_head_routers_and_norms_are_whole_on_every_tensor_parallel_rank(
    tensor: int,
) -> None:
    kinds = (WeightKind.EMBEDDINGS, WeightKind.LM_HEAD, WeightKind.ROUTER, WeightKind.NORMS)
    whole = sum(BIG.weight_bytes[kind] for kind in kinds)
    held = share(BIG.total_bytes, BIG, tensor, 1)
    divided = BIG.total_bytes - whole
    assert 0 <= held - whole - divided / tensor <= len(BIG.weight_bytes)


def test_half_of_the_122b_is_half_of_its_layers_and_its_whole_embeddings() -> None:
    assert share(BIG.total_bytes, BIG, 2, 1) / 2**30 == pytest.approx(35.1, abs=0.5)


def test_a_stage_holds_its_layers_and_what_no_stage_divides() -> None:
    held = facts_of_rank(BIG, tensor_parallel=1, pipeline_parallel=2).weight_bytes
    for kind in (WeightKind.EXPERTS, WeightKind.GDN, WeightKind.ATTENTION, WeightKind.NORMS):
        # Of 48 layers each stage has 24.
        assert held[kind] == -(-BIG.weight_bytes[kind] // 2), kind
    for kind in (WeightKind.EMBEDDINGS, WeightKind.LM_HEAD, WeightKind.MTP_EXPERTS):
        assert held[kind] == BIG.weight_bytes[kind], kind


def test_without_facts_only_what_config_json_gives_is_undivided() -> None:
    assert share_of_weights(1000, 2 * 2) == 250
    assert share_of_weights(1000, 2 * 2, embedding_bytes=200) == 400


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 100, "hidden_size": 8}, 3200),
        ({"vocab_size": 100, "hidden_size": 8, "tie_word_embeddings": True}, 1600),
        ({"text_config": {"vocab_size": 100, "hidden_size": 8}}, 3200),
        ({"model_type": "unknown", "vocab_size": 100, "hidden_size": 8}, 3200),
        ({"model_type": "gemma3_text", "vocab_size": 100, "hidden_size": 8}, 1600),
        ({"thinker_config": {"text_config": {"vocab_size": 100, "hidden_size": 8}}}, 3200),
        ({"vocab_size": 100}, 0),
        ({"vocab_size": "100", "hidden_size": 8}, 0),
        ({"vocab_size": True, "hidden_size": 8}, 0),
        ({"vocab_size": -100, "hidden_size": 8}, 0),
        ({"vocab_size": 10**12, "hidden_size": 8}, 0),
        ({"text_config": [1]}, 0),
        ({}, 0),
    ],
)
def test_embeddings_are_counted_where_config_json_gives_both_sizes(
    config: dict[str, object], size: int
) -> None:
    assert embedding_bytes(config) == size


BASELINE = load_recipe(SHIPPED, "baseline")


def laid_out(tensor: int, pipeline: int) -> CacheLayout:
    held = facts_of_rank(BIG, tensor_parallel=tensor, pipeline_parallel=pipeline)
    layout, _ = layout_of(BASELINE, held)
    assert layout is not None
    return layout


def block_bytes(pipeline: int) -> int:
    return laid_out(1, pipeline).block_bytes


def bytes_per_token(tensor: int, pipeline: int) -> int:
    return laid_out(tensor, pipeline).bytes_per_token


def test_heads_divide_by_tensor_parallel_down_to_one_and_layers_by_pipeline() -> None:
    """Two KV heads; twelve layers of full attention, three in each of four stages."""
    assert [bytes_per_token(tensor, 1) for tensor in (1, 2, 4, 8)] == [24576, 12288, 12288, 12288]
    assert [bytes_per_token(1, pipeline) for pipeline in (2, 4)] == [12288, 6144]


@given(SIZES)
def test_a_stages_blocks_are_never_larger_and_all_of_them_hold_the_whole(pipeline: int) -> None:
    whole, held = block_bytes(1), block_bytes(pipeline)
    assert held <= whole <= held * pipeline


@given(st.integers(1, 200), st.integers(1, 16))
def test_the_stages_of_a_pipeline_are_all_layers_once_and_nearly_alike(
    layers: int, stages: int
) -> None:
    made = list(stage_ranges(layers, stages))
    assert [layer for stage in made for layer in stage] == list(range(layers))
    assert max(map(len, made)) - min(map(len, made)) <= 1


def test_two_ranks_have_the_budget_of_a_model_that_one_spark_cannot_hold() -> None:
    v2 = load_recipe(SHIPPED, "v2")
    twice = replace(BIG, memory_bytes={kind: 2 * size for kind, size in BIG.weight_bytes.items()})
    half = facts_of_rank(twice, tensor_parallel=2, pipeline_parallel=1)
    assert make_budget(v2, twice, SPARK).available_bytes == 0
    assert list(budget_warnings(make_budget(v2, half, SPARK))) == []


@given(st.sampled_from([*MODELS.values()]), SIZES)
def test_a_step_divides_the_head_as_well_and_no_stage(facts: ModelFacts, tensor: int) -> None:
    held = facts_of_rank(facts, tensor_parallel=tensor, pipeline_parallel=1)
    read = facts_of_step(facts, tensor_parallel=tensor)
    for kind, size in held.weight_bytes.items():
        divided = kind in {WeightKind.LM_HEAD, WeightKind.EMBEDDINGS}
        assert read.weight_bytes[kind] == (-(-size // tensor) if divided else size)
    assert read.tensor_ranks == held.tensor_ranks == tensor
