"""The KV cache's layout against vLLM's own functions, its own log, and laws."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdeploy.checkpoint.architecture import architecture_of
from sparkdeploy.checkpoint.layers import Architecture
from sparkdeploy.checkpoint.tiny_model.build import config_files
from sparkdeploy.checkpoint.tiny_model.shape import TinyShape
from sparkdeploy.errors import CheckpointError, RecipeError
from sparkdeploy.estimate.cache_formats import slot_bytes
from sparkdeploy.estimate.kv_cache import (
    CacheLayout,
    CacheSettings,
    Kind,
    LayerCache,
    UnknownLayoutError,
    cache_layout,
    stage_ranges,
)
from sparkdeploy.recipe.flags import switch_of
from tests.families import config
from tests.unit.conftest import REPOSITORY
from tests.unit.estimate.random_configs import architectures
from tests.unit.estimate.shipped import MODELS

GIB = 2**30
POOL_BYTES = int(35.2 * GIB)
LOG = REPOSITORY / "tests" / "unit" / "server" / "logs" / "cpu-0.32-mtp.log"


def known(model: Architecture | None) -> Architecture:
    assert model is not None
    return model


BIG = known(MODELS["Intel/Qwen3.5-122B-A10B-int4-AutoRound"].architecture)


def laid_out(model: Architecture, settings: CacheSettings) -> CacheLayout:
    drafter = model.draft_layers if settings.draft_tokens else ()
    made = cache_layout(model, settings, drafter=drafter)
    assert made is not None
    return made


def layout(kv_dtype: str, draft_tokens: int, *, prefix_caching: bool = False) -> CacheLayout:
    settings = CacheSettings(
        kv_dtype=kv_dtype, draft_tokens=draft_tokens, prefix_caching=prefix_caching
    )
    return laid_out(BIG, settings)


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
    kv_dtype: str, draft_tokens: int, prefix_caching: bool, context: int, blocks: int, tokens: int
) -> None:
    """Expected values: get_kv_cache_groups, get_kv_cache_config_from_groups and
    get_kv_cache_capacity of vLLM 0.25.1 (all) and 0.32.0 (all but TurboQuant), run on these specs.
    """
    made = layout(kv_dtype, draft_tokens, prefix_caching=prefix_caching)
    assert made.blocks(POOL_BYTES) == blocks
    assert made.tokens(POOL_BYTES, context) == tokens
    assert made.logged_tokens(POOL_BYTES, context, "0.25.1") == tokens


def test_the_log_of_a_real_vllm_is_met_exactly() -> None:
    """vLLM 0.32 for the CPU with the twin and MTP 2: blocks of 128 tokens, a pool of 1 GiB."""
    twin = TinyShape()
    text = LOG.read_text(errors="replace")
    model = architecture_of(config_files(twin)["config.json"])
    settings = CacheSettings(vllm="0.32.0", draft_tokens=2, alignment_tokens=128)
    made = laid_out(model, settings)
    logged = re.search(r"KV cache size: ([\d,]+) tokens, .* for (\d+) tokens .*: ([\d.]+)x", text)
    block = re.search(r"attention block size to (\d+) tokens", text)
    padding = re.search(r"Padding mamba page size by ([\d.]+)%", text)
    assert logged
    assert block
    assert padding
    assert made.block_tokens == int(block[1])
    state_bytes = known_state(model, 2)
    page_bytes = next(it.cache.page_bytes for it in made.groups if it.cache.kind == "state")
    assert 100 * (page_bytes / state_bytes - 1) == pytest.approx(float(padding[1]), 1e-3)
    context = int(logged[2])
    assert made.tokens(GIB, context) == int(logged[1].replace(",", ""))
    assert made.concurrency(GIB, context) == pytest.approx(float(logged[3]))


def test_an_unknown_cache_dtype_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match="turboquant_asym"):
        slot_bytes("turboquant_asym", 256, 256)


def known_state(model: Architecture, draft_tokens: int) -> int:
    assert model.recurrent is not None
    return model.recurrent.state_bytes(ranks=1, draft_tokens=draft_tokens)


def test_a_drafted_token_costs_a_state_and_a_wider_window() -> None:
    assert known_state(BIG, 0) == 4_268_032
    assert known_state(BIG, 2) - known_state(BIG, 0) == 2 * 12288 * 2
    assert {it.cache.states for it in layout("auto", 2).groups} == {0, 3}


def test_at_long_context_every_narrower_format_holds_more() -> None:
    names = ("auto", "fp8", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_3bit_nc")
    held = [layout(name, 2).tokens(POOL_BYTES, 262144) for name in names]
    assert held == sorted(held)


drafts = st.integers(0, 8)
pools = st.integers(-(2**40), 2**40)
contexts = st.integers(1, 10**6)
releases = st.sampled_from(["0.25.1", "0.32.0"])


@given(architectures(), drafts, pools, contexts, contexts, releases)
def test_capacity_falls_with_context_and_is_never_negative(
    model: Architecture, draft_tokens: int, pool: int, one: int, other: int, vllm: str
) -> None:
    made = laid_out(model, CacheSettings(draft_tokens=draft_tokens, vllm=vllm))
    short, long = sorted((one, other))
    assert made.concurrency(pool, short) >= made.concurrency(pool, long) >= 0
    assert made.tokens(pool, long) >= 0


@given(architectures(), drafts, pools, contexts)
def test_capacity_falls_with_the_bytes_of_a_token(
    model: Architecture, draft_tokens: int, pool: int, context: int
) -> None:
    """BF16 is twice FP8; between other formats blocks round, so only multiples obey strictly."""
    wide, narrow = (
        laid_out(model, CacheSettings(kv_dtype=name, draft_tokens=draft_tokens))
        for name in ("auto", "fp8")
    )
    assert narrow.concurrency(pool, context) >= wide.concurrency(pool, context)


@given(architectures(), drafts)
def test_every_page_holds_its_layer_and_every_layer_has_one_group(
    model: Architecture, draft_tokens: int
) -> None:
    made = laid_out(model, CacheSettings(draft_tokens=draft_tokens))
    drafting = model.draft_layers if draft_tokens else ()
    kept = sum(len(layer.kept) for layer in (*model.layers, *drafting))
    indexers = sum(
        bool(getattr(mixer, "indexer_width", 0))
        for layer in (*model.layers, *drafting)
        for mixer in layer.kept
    )
    assert sum(len(group.layers) for group in made.groups) == kept + indexers
    assert all(group.block_bytes <= made.block_bytes for group in made.groups)
    state = model.recurrent
    if state is not None:
        held = state.state_bytes(ranks=1, draft_tokens=draft_tokens)
        pages = [it.cache.page_bytes for it in made.groups if it.cache.kind == "state"]
        assert min(pages) >= held


@given(architectures(), st.sampled_from([1, 2, 4]), st.integers(1, 4))
def test_the_layers_of_all_stages_are_those_of_the_model(
    model: Architecture, ranks: int, stages: int
) -> None:
    stages = min(stages, len(model.layers))
    whole = laid_out(model, CacheSettings(tensor_ranks=ranks))
    seen: list[int] = []
    for stage in stage_ranges(len(model.layers), stages):
        part = cache_layout(model, CacheSettings(tensor_ranks=ranks), stage=stage)
        assert part is not None
        assert part.block_bytes <= whole.block_bytes
        seen += [layer for group in part.groups for layer in group.layers]
    assert sorted(seen) == sorted(layer for group in whole.groups for layer in group.layers)


def test_states_of_a_mode_that_is_not_known_are_not_guessed() -> None:
    model = architecture_of(config("nemotron-h"))
    with pytest.raises(UnknownLayoutError, match=r"0\.25\.1 keeps Mamba-2"):
        laid_out(model, CacheSettings(vllm="0.25.1", prefix_caching=True))
    assert laid_out(model, CacheSettings(vllm="0.32.0", prefix_caching=True)).state_blocks


@pytest.mark.parametrize(
    ("kind", "blocks"),
    # 128 tokens back and 100 in flight, in blocks of 16: the window slides, so it may begin within
    # one more block; a chunk begins at a block.
    [("window", 16), ("chunk", 15), ("full", 625)],
)
def test_a_long_request_holds_what_its_attention_reaches(kind: Kind, blocks: int) -> None:
    cache = LayerCache(kind, 16, 2048, (2, 64), reach_tokens=128)
    assert cache.request_blocks(10_000, 100) == blocks
    assert cache.request_blocks(16, 100) == (2 if kind == "window" else 1)


def test_a_pattern_shorter_than_the_layers_is_named() -> None:
    short = config("nemotron-h") | {"hybrid_override_pattern": "M*"}
    with pytest.raises(CheckpointError, match="has 2 letters for"):
        architecture_of(short)


@pytest.mark.parametrize(
    ("words", "is_on"),
    [
        ([], None),
        (["--async-scheduling"], True),
        (["--async_scheduling"], True),
        (["--no-async-scheduling"], False),
        (["--async-scheduling=False"], False),
        (["--async-scheduling", "--no_async_scheduling"], False),
    ],
)
def test_a_switch_is_read_in_any_spelling(words: list[str], is_on: bool | None) -> None:
    assert switch_of(words, "--async-scheduling") is is_on
