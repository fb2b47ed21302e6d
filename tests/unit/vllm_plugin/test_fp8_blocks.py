"""Tensor-parallel sizes that break the blocks of 128."""

# mypy: disable-error-code="import-not-found"

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkdeploy_vllm.weights.conversion import refuse_broken_blocks

LAYER = "model.layers.3.mlp.shared_expert.down_proj"


@given(ranks=st.integers(1, 8), rows=st.integers(1, 8), columns=st.integers(1, 8))
def test_parts_of_whole_blocks_are_taken(ranks: int, rows: int, columns: int) -> None:
    refuse_broken_blocks(LAYER, rows=[128 * rows], columns=128 * columns, is_parted=ranks > 1)


@pytest.mark.parametrize(("rows", "columns"), [([512, 512], 3072), ([3072], 512), ([128], 128)])
def test_the_real_shared_experts_split_over_two_ranks(rows: list[int], columns: int) -> None:
    refuse_broken_blocks(LAYER, rows=rows, columns=columns, is_parted=True)


@pytest.mark.parametrize(
    ("rows", "columns"), [([64, 64], 3072), ([3072], 64), ([128, 200], 128), ([1], 1)]
)
def test_a_part_that_ends_in_a_block_is_refused_by_name(rows: list[int], columns: int) -> None:
    with pytest.raises(ValueError, match=LAYER) as caught:
        refuse_broken_blocks(LAYER, rows=rows, columns=columns, is_parted=True)
    assert "fewer tensor-parallel ranks" in str(caught.value)


def test_a_whole_layer_may_end_in_a_partial_block() -> None:
    refuse_broken_blocks(LAYER, rows=[100], columns=64, is_parted=False)
