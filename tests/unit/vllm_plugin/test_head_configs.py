"""Which tile of the INT8 head a GPU and a number of rows select."""

# mypy: disable-error-code="import-not-found"

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkdeploy_vllm.kernels.head_configs import (
    DEFAULT,
    GB10,
    HOPPER,
    HeadTile,
    shipped_for,
    tile_for,
)

AMPERE, ADA, H200, B200, SPARK = (8, 0), (8, 9), (9, 0), (10, 0), (12, 1)
CARDS = (AMPERE, ADA, H200, B200, SPARK)
SHARED_BYTES = {
    AMPERE: 163 << 10,
    ADA: 99 << 10,
    H200: 227 << 10,
    B200: 227 << 10,
    SPARK: 99 << 10,
}
"""Most shared memory one block may have."""


def tiles_for(card: tuple[int, int]) -> tuple[HeadTile, ...]:
    tiles: tuple[HeadTile, ...] = shipped_for(card).tiles
    return tiles


def test_hopper_has_the_very_tiles_that_were_measured() -> None:
    """Those of docs/figures/int8-head-h200.md; others were not shown to be right or fast."""
    assert shipped_for(H200) is HOPPER
    assert [(t.path, t.rows, t.vocab, t.hidden, t.warps, t.stages) for t in tiles_for(H200)] == [
        ("gathered", 8, 64, 256, 2, 3),
        ("gathered", 16, 128, 256, 4, 2),
        ("streamed", 32, 128, 256, 4, 3),
        ("streamed", 64, 128, 64, 4, 3),
        ("streamed", 128, 128, 64, 4, 4),
    ]


@pytest.mark.parametrize("card", [(12, 0), SPARK])
def test_a_spark_and_its_relatives_have_a_table_that_says_it_is_derived(
    card: tuple[int, int],
) -> None:
    assert shipped_for(card) is GB10
    assert "not measured" in GB10.origin


@pytest.mark.parametrize("card", [(7, 5), AMPERE, ADA, B200, (99, 0)])
def test_every_other_card_has_the_default(card: tuple[int, int]) -> None:
    assert shipped_for(card) is DEFAULT


def test_a_spark_s_tiles_ask_for_enough_to_cover_its_memory_s_latency() -> None:
    bytes_per_s, latency_s, multiprocessors, programs = 273e9, 1e-6, 48, 2
    needed = bytes_per_s * latency_s / multiprocessors
    in_flight = [(tile.stages - 1) * tile.hidden * tile.vocab for tile in GB10.tiles]
    assert programs * min(in_flight) > needed


@given(card=st.sampled_from(CARDS), rows=st.integers(1, 64))
def test_up_to_64_rows_read_the_weights_once(card: tuple[int, int], rows: int) -> None:
    assert tile_for(tiles_for(card), rows).rows >= rows


@given(card=st.sampled_from(CARDS), rows=st.integers(1, 5000), more=st.integers(0, 5000))
def test_more_rows_never_select_a_smaller_tile(card: tuple[int, int], rows: int, more: int) -> None:
    assert tile_for(tiles_for(card), rows + more).rows >= tile_for(tiles_for(card), rows).rows


@pytest.mark.parametrize("card", CARDS)
def test_one_request_with_and_without_speculation_shares_a_tile(card: tuple[int, int]) -> None:
    assert tile_for(tiles_for(card), 1) == tile_for(tiles_for(card), 8)


@pytest.mark.parametrize("card", CARDS)
def test_every_tile_fits_the_shared_memory_of_its_card(card: tuple[int, int]) -> None:
    assert all(tile.shared_bytes < SHARED_BYTES[card] for tile in tiles_for(card))


def test_the_copy_engine_is_used_on_hopper_alone() -> None:
    streaming = {c for c in CARDS if any(tile.path == "streamed" for tile in tiles_for(c))}
    assert streaming == {H200}


@pytest.mark.parametrize("card", CARDS)
def test_sizes_are_what_tensor_cores_take(card: tuple[int, int]) -> None:
    for tile in tiles_for(card):
        for size in (tile.rows, tile.vocab, tile.hidden, tile.warps):
            assert size & (size - 1) == 0
        assert tile.hidden % 16 == 0
        # wgmma needs four warps and 64 rows of its left operand, here the vocabulary.
        assert tile.path == "gathered" or (tile.warps % 4 == 0 and tile.vocab % 64 == 0)
