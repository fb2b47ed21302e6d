"""What one rank holds of weights and cache: laws, and the figures of the 122B."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.estimate.kv_cache import architecture_of_rank, cache_layout
from sparkdeploy.estimate.model_facts import Kind, ModelFacts, read_shipped_facts
from sparkdeploy.estimate.share import embedding_bytes, share_of_weights
from tests.unit.conftest import REPOSITORY

FACTS = read_shipped_facts(REPOSITORY / "recipes" / "facts" / "models.yaml")
BIG = FACTS["Intel/Qwen3.5-122B-A10B-int4-AutoRound"]
KNOWN = st.sampled_from([None, *FACTS.values()])
SIZES = st.integers(1, 16)
TOTALS = st.integers(0, 2**40)


def share(total_bytes: int, facts: ModelFacts | None, tensor: int, pipeline: int) -> int:
    return share_of_weights(
        total_bytes,
        facts,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        undivided_bytes=2**30,
    )


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
    kinds = (Kind.EMBEDDINGS, Kind.LM_HEAD, Kind.ROUTER, Kind.NORMS)
    whole = sum(BIG.weight_bytes[kind] for kind in kinds)
    held = share(BIG.total_bytes, BIG, tensor, 1)
    assert held == whole - (-(BIG.total_bytes - whole) // tensor)


def test_half_of_the_122b_is_half_of_its_layers_and_its_whole_embeddings() -> None:
    assert share(BIG.total_bytes, BIG, 2, 1) / 2**30 == pytest.approx(35.1, abs=0.5)


def test_without_facts_only_what_config_json_gives_is_undivided() -> None:
    halves = {"tensor_parallel": 2, "pipeline_parallel": 2}
    assert share_of_weights(1000, None, **halves) == 250
    assert share_of_weights(1000, None, **halves, undivided_bytes=200) == 400


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"vocab_size": 100, "hidden_size": 8}, 3200),
        ({"vocab_size": 100, "hidden_size": 8, "tie_word_embeddings": True}, 1600),
        ({"text_config": {"vocab_size": 100, "hidden_size": 8}}, 3200),
        ({"vocab_size": 100}, 0),
        ({"vocab_size": "100", "hidden_size": 8}, 0),
        ({"text_config": [1]}, 0),
        ({}, 0),
    ],
)
def test_embeddings_are_counted_where_config_json_gives_both_sizes(
    config: dict[str, object], size: int
) -> None:
    assert embedding_bytes(config) == size


def test_heads_divide_by_tensor_parallel_down_to_one_and_layers_by_pipeline() -> None:
    heads = [
        architecture_of_rank(
            BIG.architecture, tensor_parallel=tensor, pipeline_parallel=1
        ).num_key_value_heads
        for tensor in (1, 2, 4, 8)
    ]
    assert heads == [2, 1, 1, 1]
    staged = architecture_of_rank(BIG.architecture, tensor_parallel=1, pipeline_parallel=4)
    assert (staged.full_attention_layers, staged.linear_attention_layers) == (3, 9)


@given(SIZES, SIZES)
def test_a_ranks_cache_is_never_larger_and_all_of_them_hold_the_whole(
    tensor: int, pipeline: int
) -> None:
    def bytes_per_token(tensor: int, pipeline: int) -> int:
        architecture = architecture_of_rank(
            BIG.architecture, tensor_parallel=tensor, pipeline_parallel=pipeline
        )
        layout = cache_layout(architecture, kv_dtype="auto")
        return layout.token_bytes * layout.attention_layers

    whole, held = bytes_per_token(1, 1), bytes_per_token(tensor, pipeline)
    assert held <= whole <= held * tensor * pipeline
