"""Which tile the TurboQuant kernel takes for a layer. Asked once per layer, while it is made."""

from pathlib import Path

from sparkdeploy_vllm.kernels.tile_choice import Choice, tuned_or
from sparkdeploy_vllm.kernels.turboquant_tiles import SHIPPED, AttentionTile, fitting
from sparkdeploy_vllm.kernels.turboquant_tiles_file import AttentionKey, read_tuned, tuned_path

AttentionChoice = Choice[AttentionKey, AttentionTile]


def choose_tile(key: AttentionKey, folder: Path) -> AttentionChoice:
    """ValueError for a layer or a card for which no tile ships: the kernel does not take those."""
    return tuned_or(shipped_choice(key), tuned_path(key, folder), lambda: read_tuned(key, folder))


def shipped_choice(key: AttentionKey) -> AttentionChoice:
    table = SHIPPED.get(key.capability[0])
    if table is not None:
        tile = fitting(table.tiles, table.shared_bytes, key.slot, key.kv_heads, key.rows)
        if tile is not None:
            return Choice(key, "shipped", f"{table.name}: {table.origin}", tile)
    raise ValueError("no tile of the TurboQuant kernel fits this layer and card")
