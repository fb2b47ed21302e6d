"""How TurboQuant's decode kernel is cut: the tile that is taken, and what the source computes."""

# mypy: disable-error-code="import-not-found"

import functools
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import CodeType

import pytest
from sparkdeploy_vllm.tuning.tiles import Tuned, choose, write_tuned
from sparkdeploy_vllm.turboquant.format import BITS, SlotFormat, slot_format
from sparkdeploy_vllm.turboquant.tiles import (
    GB10,
    HOPPER,
    SHIPPED,
    AttentionKey,
    AttentionTile,
    kernel_fingerprint,
    query_bytes,
    shared_bytes,
    shipped_tile,
)

from tests.unit.vllm_plugin.conftest import PLUGIN_TREE

SOURCE = PLUGIN_TREE / "sparkdeploy_vllm" / "turboquant" / "decode.cu"
FOUR_BITS = "turboquant_4bit_nc"
SHAPES = {
    "32 query and 2 KV heads of 256": (32, 2, 256),
    "16 query and 2 KV heads of 256": (16, 2, 256),
    "32 query and 8 KV heads of 128": (32, 8, 128),
    "16 query and 8 KV heads of 64": (16, 8, 64),
}

MANY_HEADS = ("sm_12x", (32, 8, 128))
"""The queries of eight heads take too much there from eight rows on: two tokens of a group of 4."""


@pytest.mark.parametrize("cache_dtype", BITS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("major", SHIPPED)
def test_layers_of_known_models_have_a_tile(
    major: int, shape: tuple[int, int, int], cache_dtype: str
) -> None:
    shipped = SHIPPED[major]
    query_heads, kv_heads, head_dim = shape
    slot = slot_format(cache_dtype, head_dim)
    for tokens in range(1, 9):
        rows = tokens * query_heads // kv_heads
        if (shipped.name, shape) == MANY_HEADS and rows >= 8:
            continue
        tile = shipped_tile(major, slot, kv_heads, rows)
        assert tile is not None, (shipped.name, shape, cache_dtype, tokens)
        assert tile.warps % tile.heads == kv_heads % tile.heads == 0
        used = shared_bytes(tile, slot, kv_heads, rows)
        assert used + tile.fixed_bytes <= shipped.shared_bytes


def test_shared_memory_is_queries_weights_and_the_ring() -> None:
    """256 dimensions in 4 bits: a slot is 128 + 2 bytes of a key and 128 + 4 of a value."""
    slot = slot_format(FOUR_BITS, 256)
    assert slot.slot_bytes == 262
    # 2 KV heads x 8 pairs of rows x (256 FP16 of each row + a distance).
    tile = AttentionTile(32, 8, 2, 16, 2)
    assert query_bytes(tile, slot, 16) == 2 * 8 * (2 * 256 * 2 + 16) == 16_640
    # FP16 for each of 16 rows and 32 tokens of each warp.
    assert shared_bytes(tile, slot, 2, 16) == 16_640 + 2 * 16 * 32 * 8 + 2 * 32 * 8 * 262
    three = replace(tile, tokens=16, rows=48)
    assert query_bytes(three, slot, 48) == 3 * 16_640
    assert query_bytes(three, slot, 30) == 2 * 16_640
    assert shared_bytes(three, slot, 2, 48) == 3 * 16_640 + 2 * 48 * 16 * 8 + 2 * 16 * 8 * 262
    # Of one head, of which each warp has tokens of its own, and pages have both heads'.
    one = replace(three, heads=1)
    assert shared_bytes(one, slot, 2, 48) == 3 * 8_320 + 2 * 48 * 16 * 8 + 2 * 16 * 8 * 2 * 262


def python_of(formula: str) -> str:
    condition, _, rest = formula.partition(" ? ")
    if not rest:
        return formula.replace("/", "//")
    chosen, _, otherwise = rest.partition(" : ")
    return f"{python_of(chosen)} if {python_of(condition)} else {python_of(otherwise)}"


@functools.cache
def formulas() -> dict[str, CodeType]:
    """How the source computes its integers, as Python."""
    text = re.sub(r"\s+", " ", re.sub(r"//.*", "", SOURCE.read_text()))
    found = re.findall(r"constexpr int (\w+) = ([^;]+);", text)
    return {name: compile(python_of(formula), name, "eval") for name, formula in found}


def constants(**sizes: int) -> dict[str, int]:
    """What the source computes of the sizes it is compiled for."""
    found = dict(sizes)
    for name, formula in formulas().items():
        found[name] = int(eval(formula, {"__builtins__": {}}, found))
    return found


def compiled(slot: SlotFormat, tile: AttentionTile, kv_heads: int, **more: int) -> dict[str, int]:
    return constants(
        HEAD_DIM=slot.head_dim,
        KEY_BITS=slot.key_bits,
        VALUE_BITS=slot.value_bits,
        KV_HEADS=kv_heads,
        TOKENS=tile.tokens,
        WARPS=tile.warps,
        STAGES=tile.stages,
        ROWS=tile.rows_for(more.get("MOST_TOKENS", 1) * more.get("GROUP", 1)),
        HEADS=tile.heads,
        **{"PAGE": 16, "GROUP": 1, "MOST_TOKENS": 1, "MOST_SPLITS": 256} | more,
    )


@pytest.mark.parametrize("cache_dtype", BITS)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_the_source_finds_everything_where_the_format_has_it(
    cache_dtype: str, head_dim: int
) -> None:
    slot = slot_format(cache_dtype, head_dim)
    found = compiled(slot, AttentionTile(16, 8, 2, 16, 4), 4)
    assert (found["NORM"], found["VALUE"]) == (slot.key_code_bytes, slot.value_offset)
    assert (found["SCALE"], found["SLOT"]) == (slot.scale_offset, slot.slot_bytes)
    assert found["TOKEN"] == 4 * slot.slot_bytes
    assert bool(found["ROTATED"]) is slot.has_rotated_keys


@pytest.mark.parametrize("tile", dict.fromkeys(HOPPER.tiles + GB10.tiles), ids=repr)
@pytest.mark.parametrize(("group", "tokens"), [(1, 1), (2, 3), (4, 1), (8, 2), (16, 4)])
def test_the_source_uses_the_shared_memory_that_is_asked_for(
    tile: AttentionTile, group: int, tokens: int
) -> None:
    for cache_dtype, head_dim, kv_heads in product(BITS, (64, 128, 256), (1, 2, 4, 8)):
        if kv_heads % tile.heads or tile.warps % tile.heads:
            continue  # no layer gets such a tile
        slot = slot_format(cache_dtype, head_dim)
        found = compiled(slot, tile, kv_heads, GROUP=group, MOST_TOKENS=tokens)
        rows = group * tokens
        queries = (found["QUERY_BYTES"] + 127) // 128 * 128
        assert queries == query_bytes(tile, slot, rows)
        assert found["TEAM"] == tile.team(slot)
        ring = found["STAGES"] * found["STAGE_BYTES"]
        results = tile.heads * found["TEAM"] * found["OWN"] * found["ROW_TILES"] * 32 * 32
        joined = (found["TEAMS"] - 1) * results * 4
        used = queries + found["WEIGHT_BYTES"] + max(ring, joined)
        assert used == shared_bytes(tile, slot, kv_heads, rows)


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
TUNED = AttentionTile(tokens=16, warps=4, stages=2, rows=16, heads=2)


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
    assert "4 warps, 2 stages, 16 rows of 2 heads does not fit 8 KV heads" in choice.ignored
