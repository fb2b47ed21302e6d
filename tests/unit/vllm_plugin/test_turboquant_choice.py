"""Which tile the TurboQuant kernel takes: tuned or shipped, and what it makes of bad files.

The file itself is that of the head; test_head_choice.py holds what both share.
"""

# mypy: disable-error-code="import-not-found"

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from sparkdeploy_vllm.kernels.head_tiles_file import tuned_folder as head_folder
from sparkdeploy_vllm.kernels.tiles_file import UnusableTilesError
from sparkdeploy_vllm.kernels.turboquant_choice import choose_tile
from sparkdeploy_vllm.kernels.turboquant_tiles import GB10, HOPPER, AttentionTile
from sparkdeploy_vllm.kernels.turboquant_tiles_file import (
    AttentionKey,
    TunedAttention,
    kernel_fingerprint,
    tuned_folder,
    tuned_path,
    write_tuned,
)

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
    tuned = TunedAttention(tile, {4096: 0.01234567, 65536: 0.1}, {4096: 0.0125, 65536: 0.11})
    return Path(write_tuned(key, tuned, {"torch": "2.11.0"}, folder))


def test_without_a_file_each_card_gets_what_ships_for_it(tmp_path: Path) -> None:
    spark, hopper = choose_tile(KEY, tmp_path), choose_tile(H100, tmp_path)
    assert (spark.source, spark.tiles, spark.ignored) == ("shipped", AttentionTile(16, 4, 3), "")
    assert spark.tiles in GB10.tiles
    assert (hopper.source, hopper.tiles) == ("shipped", HOPPER.tiles[0])


@pytest.mark.parametrize(
    "other", [replace(KEY, capability=(8, 0)), replace(KEY, kv_heads=8, group=32)]
)
def test_what_the_kernel_does_not_take_has_no_tile(tmp_path: Path, other: AttentionKey) -> None:
    with pytest.raises(ValueError, match="no tile"):
        choose_tile(other, tmp_path)


def test_the_line_says_where_the_tile_is_from(tmp_path: Path) -> None:
    shipped = [choose_tile(key, tmp_path).line for key in (KEY, H100)]
    path = store(tmp_path)
    said = "sparkdeploy: TurboQuant decodes by our kernel: tiles="
    assert [*shipped, choose_tile(KEY, tmp_path).line] == [
        f"{said}shipped (sm_12x: {GB10.origin})",
        f"{said}shipped (sm_90: {HOPPER.origin})",
        f"{said}tuned ({path})",
    ]
    assert "not measured" in GB10.origin


def test_what_was_tuned_is_taken_and_says_what_it_was_tuned_for(tmp_path: Path) -> None:
    path = store(tmp_path)
    choice = choose_tile(KEY, tmp_path)
    assert (choice.source, choice.tiles, choice.ignored) == ("tuned", TUNED, "")
    document = json.loads(path.read_text())
    assert document["key"] == {**asdict(KEY), "capability": [12, 1]}
    times = {"ms": {"4096": 0.01235, "65536": 0.1}, "shipped_ms": {"4096": 0.0125, "65536": 0.11}}
    assert document["tiles"] == [{**asdict(TUNED), **times}]


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
    choice = choose_tile(other, tmp_path)
    assert (choice.source, choice.ignored) == ("shipped", "")


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda it: it["key"].pop("nvrtc"), "nvrtc None"),
        (lambda it: it["tiles"].append(it["tiles"][0]), "it has 2 tiles"),
        (lambda it: it["tiles"][0].pop("warps"), "it needs tokens"),
        (lambda it: it["tiles"][0].update(tokens=64), "tokens is 64"),
        (lambda it: it["tiles"][0].update(warps=2), "warps is 2"),
        (lambda it: it["tiles"][0].update(stages=5), "stages is 5"),
        (lambda it: it["tiles"][0].update(tokens=32, warps=8, stages=4), "shared memory"),
    ],
)
def test_a_file_that_was_edited_is_ignored(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], why: str
) -> None:
    path = store(tmp_path)
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))
    choice = choose_tile(KEY, tmp_path)
    assert choice.source == "shipped"
    assert why in choice.ignored


def test_warps_that_heads_cannot_share_are_not_written(tmp_path: Path) -> None:
    eight = replace(KEY, head_dim=64, kv_heads=8, group=1)
    with pytest.raises(UnusableTilesError, match="4 warps cannot be shared by 8 KV heads"):
        store(tmp_path / "new", eight)
    assert not (tmp_path / "new").exists()


def test_the_folder_is_beside_the_head_s() -> None:
    cache = {"XDG_CACHE_HOME": "/cache/xdg"}
    assert tuned_folder(cache).parent == head_folder(cache).parent
    assert tuned_folder(cache) == Path("/cache/xdg/sparkdeploy/turboquant-decode")


def test_a_file_s_name_says_card_format_heads_and_query_tokens(tmp_path: Path) -> None:
    assert tuned_path(KEY, tmp_path).name == "nvidia-gb10-sm121-k4v4-2x16x256-3.json"
