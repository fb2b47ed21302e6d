"""The KV cache's layout against vLLM's own functions, its own log, and laws."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.checkpoint.twin.build import config_files
from sparkdeploy.checkpoint.twin.shape import TwinShape
from sparkdeploy.errors import RecipeError
from sparkdeploy.estimate.kv_cache import CacheLayout, cache_layout, slot_bytes, state_bytes
from sparkdeploy.estimate.model_facts import Architecture, architecture_of, read_shipped_facts
from tests.unit.conftest import REPOSITORY

GIB = 2**30
POOL_BYTES = int(35.2 * GIB)
FACTS = read_shipped_facts(REPOSITORY / "recipes" / "facts" / "models.yaml")
BIG = FACTS["Intel/Qwen3.5-122B-A10B-int4-AutoRound"].architecture
LOG = REPOSITORY / "tests" / "unit" / "server" / "logs" / "cpu-0.32-mtp.log"


def layout(kv_dtype: str, draft_tokens: int, *, prefix_caching: bool = False) -> CacheLayout:
    return cache_layout(
        BIG,
        kv_dtype=kv_dtype,
        draft_layers=int(draft_tokens > 0),
        draft_tokens=draft_tokens,
        prefix_caching=prefix_caching,
    )


@pytest.mark.parametrize(
    ("kv_dtype", "draft_tokens", "prefix_caching", "context", "blocks", "tokens"),
    [
        ("auto", 0, False, 32768, 733, 1264154),
        ("auto", 0, False, 262144, 733, 1489546),
        ("auto", 1, False, 32768, 677, 1008360),
        ("auto", 1, False, 262144, 677, 1344480),
        ("auto", 2, False, 32768, 672, 880803),
        ("auto", 2, False, 262144, 672, 1314632),
        ("auto", 2, True, 32768, 672, 786432),
        ("auto", 2, True, 262144, 672, 1285845),
        ("fp8", 2, False, 32768, 672, 1295299),
        ("fp8", 2, False, 262144, 672, 2446677),
        ("turboquant_4bit_nc", 2, False, 32768, 673, 1696374),
        ("turboquant_4bit_nc", 2, False, 262144, 673, 4302997),
        ("turboquant_k8v4", 2, False, 32768, 672, 1468006),
        ("turboquant_k8v4", 2, False, 262144, 672, 3090539),
        ("turboquant_3bit_nc", 2, False, 32768, 672, 1693853),
        ("turboquant_3bit_nc", 2, False, 262144, 672, 5181199),
    ],
)
def test_the_122b_has_the_blocks_and_tokens_that_vllms_functions_return(
    kv_dtype: str,
    draft_tokens: int,
    prefix_caching: bool,
    context: int,
    blocks: int,
    tokens: int,
) -> None:
    """Expected values: get_kv_cache_groups, get_kv_cache_config_from_groups and
    get_kv_cache_capacity of vLLM 0.25.1 (all) and 0.32.0 (all but TurboQuant), run on these specs.
    """
    made = layout(kv_dtype, draft_tokens, prefix_caching=prefix_caching)
    assert made.blocks(POOL_BYTES) == blocks
    assert made.tokens(POOL_BYTES, context) == tokens
    assert made.logged_tokens(POOL_BYTES, context, "0.25.1") == tokens


def test_the_published_355k_tokens_of_v2_are_blocks_divided_by_groups() -> None:
    assert layout("auto", 2).logged_tokens(POOL_BYTES, 262144, "0.19.1") == 354_816
    assert int(layout("auto", 2).concurrency(POOL_BYTES, 262144)) == 5


def test_the_log_of_a_real_vllm_is_met_exactly() -> None:
    """vLLM 0.32 for the CPU with the twin and MTP 2: blocks of 128 tokens, a pool of 1 GiB."""
    twin = TwinShape()
    text = LOG.read_text(errors="replace")
    made = cache_layout(
        architecture_of(config_files(twin)["config.json"]),
        kv_dtype="auto",
        draft_layers=1,
        draft_tokens=2,
        alignment_tokens=128,
    )
    logged = re.search(r"KV cache size: ([\d,]+) tokens, .* for (\d+) tokens .*: ([\d.]+)x", text)
    block = re.search(r"attention block size to (\d+) tokens", text)
    padding = re.search(r"Padding mamba page size by ([\d.]+)%", text)
    assert logged
    assert block
    assert padding
    assert made.block_tokens == int(block[1])
    assert 100 * (made.page_bytes / made.state_bytes - 1) == pytest.approx(float(padding[1]), 1e-3)
    context = int(logged[2])
    assert made.tokens(GIB, context) == int(logged[1].replace(",", ""))
    assert made.concurrency(GIB, context) == pytest.approx(float(logged[3]))


def test_slots_are_those_of_vllms_formats() -> None:
    names = ("k8v4", "4bit_nc", "k3v4_nc", "3bit_nc")
    assert [slot_bytes(f"turboquant_{name}", 256) for name in names] == [388, 262, 230, 198]
    assert (slot_bytes("auto", 256), slot_bytes("fp8_e4m3", 256)) == (1024, 512)


def test_an_unknown_cache_dtype_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match="turboquant_asym"):
        slot_bytes("turboquant_asym", 256)


def test_a_drafted_token_costs_a_state_and_a_wider_window() -> None:
    assert state_bytes(BIG, 0) == 4_268_032
    assert state_bytes(BIG, 2) - state_bytes(BIG, 0) == 2 * 12288 * 2
    assert layout("auto", 2).states_per_request == 3


architectures = st.builds(
    Architecture,
    hidden_size=st.just(2048),
    vocab_size=st.just(1000),
    full_attention_layers=st.integers(1, 64),
    linear_attention_layers=st.integers(0, 64),
    num_attention_heads=st.just(16),
    num_key_value_heads=st.integers(1, 16),
    head_dim=st.sampled_from([64, 128, 256]),
    linear_num_key_heads=st.integers(1, 32),
    linear_num_value_heads=st.integers(1, 64),
    linear_key_head_dim=st.just(128),
    linear_value_head_dim=st.just(128),
    linear_conv_kernel_dim=st.integers(2, 8),
    num_experts=st.just(8),
    num_experts_per_tok=st.just(2),
    moe_intermediate_size=st.just(256),
    shared_expert_intermediate_size=st.just(256),
    mtp_num_hidden_layers=st.just(1),
    max_position_embeddings=st.just(262144),
)
drafts = st.integers(0, 8)
pools = st.integers(-(2**40), 2**40)
contexts = st.integers(1, 10**6)


@given(architectures, drafts, pools, contexts, contexts)
def test_capacity_falls_with_context_and_is_never_negative(
    model: Architecture, draft_tokens: int, pool: int, one: int, other: int
) -> None:
    made = cache_layout(model, kv_dtype="auto", draft_layers=1, draft_tokens=draft_tokens)
    short, long = sorted((one, other))
    assert made.concurrency(pool, short) >= made.concurrency(pool, long) >= 0
    assert made.tokens(pool, long) >= 0


@given(architectures, drafts, pools, contexts)
def test_capacity_falls_with_the_bytes_of_a_token(
    model: Architecture, draft_tokens: int, pool: int, context: int
) -> None:
    """BF16 is twice FP8; between other formats blocks round, so only multiples obey strictly."""
    wide, narrow = (
        cache_layout(model, kv_dtype=name, draft_layers=1, draft_tokens=draft_tokens)
        for name in ("auto", "fp8")
    )
    assert narrow.concurrency(pool, context) >= wide.concurrency(pool, context)


@given(architectures, drafts)
def test_a_page_holds_a_state_and_every_layer_has_a_group(
    model: Architecture, draft_tokens: int
) -> None:
    made = cache_layout(model, kv_dtype="auto", draft_tokens=draft_tokens)
    assert made.page_bytes >= made.state_bytes
    assert made.attention_groups * made.group_layers >= made.attention_layers
    assert made.state_groups * made.group_layers >= model.linear_attention_layers


def test_at_long_context_every_narrower_format_holds_more() -> None:
    names = ("auto", "fp8", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_3bit_nc")
    held = [layout(name, 2).tokens(POOL_BYTES, 262144) for name in names]
    assert held == sorted(held)
