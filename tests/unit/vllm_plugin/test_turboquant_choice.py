"""Which tile the TurboQuant kernel takes: tuned or shipped, and what it makes of bad files.

The file itself is that of the head; test_head_choice.py holds what both share.
"""

# mypy: disable-error-code="import-not-found"

from dataclasses import replace
from pathlib import Path

import pytest
from sparkdeploy_vllm.tuning.tiles import Tuned, choose, write_tuned
from sparkdeploy_vllm.turboquant.tiles import AttentionKey, AttentionTile, kernel_fingerprint

KEY = AttentionKey(
    card="NVIDIA GB10",
    capability=(12, 1),
    key_bits=4,
    value_bits=4,
    head_dim=256,
    kv_heads=2,
    group=16,
    most_tokens=3,
    kernel=kernel_fingerprint(),
    nvrtc="13.0",
)
H100 = replace(KEY, card="NVIDIA H100", capability=(9, 0))
TUNED = AttentionTile(tokens=16, warps=4, stages=2)


def store(folder: Path, key: AttentionKey = KEY, tile: AttentionTile = TUNED) -> Path:
    """Write a tuned tile as the command does."""
    tuned = Tuned(tile, {4096: 0.01234567, 65536: 0.1}, {4096: 0.0125, 65536: 0.11})
    return Path(write_tuned(key, [tuned], {"torch": "2.11.0"}, folder))


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, key_bits=3),
        replace(KEY, value_bits=3),
        replace(KEY, head_dim=128),
        replace(KEY, kv_heads=1),
        replace(KEY, group=8),
        replace(KEY, most_tokens=1),
        H100,
    ],
)
def test_another_layer_has_a_file_of_its_own(tmp_path: Path, other: AttentionKey) -> None:
    store(tmp_path)
    choice = choose(other, tmp_path)
    assert (choice.source, choice.ignored) == ("shipped", "")


def test_a_tile_that_does_not_fit_the_layer_is_not_used(tmp_path: Path) -> None:
    eight = replace(KEY, head_dim=64, kv_heads=8, group=1)
    store(tmp_path, eight)
    choice = choose(eight, tmp_path)
    assert choice.source == "shipped"
    assert "4 warps, 2 stages does not fit 8 KV heads" in choice.ignored
