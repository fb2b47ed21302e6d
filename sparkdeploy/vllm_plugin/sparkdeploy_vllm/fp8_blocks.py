"""Whether FP8 blocks survive being split over ranks; standard library only."""

from collections.abc import Sequence

BLOCK = 128


def refuse_broken_blocks(name: str, *, rows: Sequence[int], columns: int, is_parted: bool) -> None:
    """Raise ValueError when a rank's part of layer `name` ends within a block of 128 x 128.

    `rows` are the outputs of each module that the layer fuses, `columns` its inputs, both of one
    rank. A layer that is whole may end in a partial block: its neighbour is no other's.
    """
    if is_parted and (columns % BLOCK or any(count % BLOCK for count in rows)):
        raise ValueError(
            f"sparkdeploy: FP8 blocks of {BLOCK} x {BLOCK} do not divide the part of {name} that a "
            f"rank would hold, {list(rows)} x {columns}; use fewer tensor-parallel ranks"
        )
