"""Which tile of the INT8 head a GPU and a number of rows select."""

# mypy: disable-error-code="import-not-found"

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkdeploy_vllm.head.tiles import HeadTile, shipped_for, tile_for

AMPERE, ADA, H200, B200, SPARK = (8, 0), (8, 9), (9, 0), (10, 0), (12, 1)
CARDS = (AMPERE, ADA, H200, B200, SPARK)
SHARED_BYTES = {AMPERE: 163 << 10, ADA: 99 << 10, H200: 227 << 10, B200: 227 << 10, SPARK: 99 << 10}
"""Most shared memory one block may have."""


def tiles_for(card: tuple[int, int]) -> tuple[HeadTile, ...]:
    tiles: tuple[HeadTile, ...] = shipped_for(card).tiles
    return tiles


@given(card=st.sampled_from(CARDS), rows=st.integers(1, 64))
def test_up_to_64_rows_read_the_weights_once(card: tuple[int, int], rows: int) -> None:
    assert tile_for(tiles_for(card), rows).rows >= rows


@given(card=st.sampled_from(CARDS), rows=st.integers(1, 5000), more=st.integers(0, 5000))
def test_more_rows_never_select_a_smaller_tile(card: tuple[int, int], rows: int, more: int) -> None:
    assert tile_for(tiles_for(card), rows + more).rows >= tile_for(tiles_for(card), rows).rows


@pytest.mark.parametrize("card", CARDS)
def test_every_tile_fits_the_shared_memory_of_its_card(card: tuple[int, int]) -> None:
    assert all(tile.shared_bytes < SHARED_BYTES[card] for tile in tiles_for(card))


@pytest.mark.parametrize("card", CARDS)
def test_sizes_are_what_tensor_cores_take(card: tuple[int, int]) -> None:
    for tile in tiles_for(card):
        for size in (tile.rows, tile.vocab, tile.hidden, tile.warps):
            assert size & (size - 1) == 0
        assert tile.hidden % 16 == 0
        # wgmma needs four warps and 64 rows of its left operand, here the vocabulary.
        assert tile.path == "gathered" or (tile.warps % 4 == 0 and tile.vocab % 64 == 0)
