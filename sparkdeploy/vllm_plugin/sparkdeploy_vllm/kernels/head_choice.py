"""Which tiles the head of a card and a shape uses. Asked once per matrix, while it loads."""

from pathlib import Path

from sparkdeploy_vllm.kernels.head_configs import DEFAULT, HeadTile, shipped_for
from sparkdeploy_vllm.kernels.head_tiles_file import HeadKey, read_tuned, tuned_path
from sparkdeploy_vllm.kernels.tile_choice import Choice, Source, tuned_or

HeadChoice = Choice[HeadKey, tuple[HeadTile, ...]]


def choose_tiles(key: HeadKey, folder: Path) -> HeadChoice:
    path = tuned_path(key, folder)
    return tuned_or(shipped_choice(key), path, lambda: read_tuned(key, folder))


def shipped_choice(key: HeadKey, *, ignored: str = "") -> HeadChoice:
    table = shipped_for(key.capability, key.weights)
    is_default = table.name == DEFAULT.name
    source: Source = "default" if is_default else "shipped"
    name = "" if is_default else f"{table.name}: "
    return Choice(key, source, f"{name}{table.origin}", table.tiles, ignored)
