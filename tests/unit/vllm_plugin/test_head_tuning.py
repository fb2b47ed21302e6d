"""The search for tiles, with a card whose times are given."""

# mypy: disable-error-code="import-not-found"

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from sparkdeploy_vllm.head.tiles import GB10, HOPPER, ROW_CLASSES, HeadKey, HeadTile
from sparkdeploy_vllm.tune_head import Served, head_shapes, served
from sparkdeploy_vllm.tuning.search import FINALISTS, UnsteadyCardError, head_candidates, tune_head

from tests.unit.vllm_plugin.conftest import PLUGIN_TREE

pytestmark = pytest.mark.outside

SPARK = HeadKey("NVIDIA GB10", (12, 1), 248_320, 3072, kernel="abc", triton="3.6.0")
H200 = replace(SPARK, card="NVIDIA H200", capability=(9, 0))
SHARED_BYTES = {SPARK: 99 << 10, H200: 227 << 10}
FAST = HeadTile("gathered", rows=16, vocab=128, hidden=128, warps=4, stages=4)


@dataclass
class PaperStand:
    """A card whose times come from a function, and on which some tiles are wrong."""

    time_ms: Callable[[HeadTile, int], float]
    wrong: Callable[[HeadTile], bool] = lambda _tile: False
    timed: list[tuple[int, Sequence[HeadTile]]] = field(default_factory=list)
    shared_bytes: int = SHARED_BYTES[SPARK]

    def is_right(self, tile: HeadTile) -> bool:
        return not self.wrong(tile)

    def times_ms(self, tiles: Sequence[HeadTile], rows: int, rounds: int) -> list[float]:
        self.timed.append((rows, tiles))
        return [self.time_ms(tile, rows) for tile in tiles]


def winners(key: HeadKey, stand: PaperStand) -> tuple[HeadTile, ...]:
    stand.shared_bytes = SHARED_BYTES[key]
    return tuple(won.tile for won in tune_head(key, stand, rounds=3, say=lambda _line: None))


def flat(_tile: HeadTile, rows: int) -> float:
    return 2.8 + rows / 1000


def favouring(fast: HeadTile, by: float) -> Callable[[HeadTile, int], float]:
    return lambda tile, rows: flat(tile, rows) * (1 - by if tile == fast else 1)


@pytest.mark.parametrize("key", [SPARK, H200])
def test_where_all_are_equal_what_ships_stays(key: HeadKey) -> None:
    assert winners(key, PaperStand(flat)) == key.shipped().tiles


def test_a_faster_tile_wins_its_class_alone() -> None:
    lines: list[str] = []
    tuned = tune_head(SPARK, PaperStand(favouring(FAST, 0.05)), rounds=3, say=lines.append)
    assert [won.tile for won in tuned] == [GB10.tiles[0], FAST, *GB10.tiles[2:]]
    assert (round(tuned[1].ms[16], 3), round(tuned[1].shipped_ms[16], 3)) == (2.675, 2.816)
    assert len(lines) == len(ROW_CLASSES)
    assert "| gathered 16x128x128, 4 warps, 4 stages | 2.67520 |" in lines[1]


def test_less_than_a_percent_is_no_reason() -> None:
    assert winners(SPARK, PaperStand(favouring(FAST, 0.009))) == GB10.tiles


def test_a_wrong_tile_is_never_timed_however_fast() -> None:
    stand = PaperStand(favouring(FAST, 0.5), wrong=lambda tile: tile == FAST)
    assert winners(SPARK, stand) == GB10.tiles
    assert FAST not in [tile for _, tiles in stand.timed for tile in tiles]


def test_without_any_right_rival_what_ships_stays() -> None:
    assert winners(H200, PaperStand(flat, wrong=lambda _tile: True)) == HOPPER.tiles


def test_rows_beyond_the_largest_tile_get_one_of_their_own_only_where_it_is_faster() -> None:
    wide = HeadTile("gathered", rows=128, vocab=128, hidden=64, warps=8, stages=2)
    assert winners(SPARK, PaperStand(favouring(wide, 0.1))) == (*GB10.tiles, wide)
    large = HeadTile("gathered", rows=64, vocab=128, hidden=64, warps=8, stages=2)
    assert winners(SPARK, PaperStand(favouring(large, 0.1))) == (*GB10.tiles[:3], large)


def test_a_card_that_is_busy_is_refused() -> None:
    calls = iter(range(100_000))

    def slowing(_tile: HeadTile, _rows: int) -> float:
        return 2.8 * 1.01 ** next(calls)

    with pytest.raises(UnsteadyCardError, match="nothing else may use the card"):
        winners(SPARK, PaperStand(slowing))


@pytest.mark.parametrize("key", [SPARK, H200])
def test_only_what_the_kernels_take_is_tried_and_not_too_much(key: HeadKey) -> None:
    for rows in ROW_CLASSES:
        tried = list(head_candidates(key, rows, SHARED_BYTES[key]))
        assert FINALISTS < len(tried) == len(set(tried)) <= 72
        assert all(tile.rows == rows for tile in tried)
        assert not [tile for tile in tried if key.tile_problem(tile)]
        assert max(tile.shared_bytes for tile in tried) <= SHARED_BYTES[key]


def test_what_ships_could_be_found() -> None:
    for key in (SPARK, H200):
        assert not key.problem(key.shipped().tiles)


def test_shapes_are_those_that_vllm_makes_of_a_checkpoint() -> None:
    text = {"vocab_size": 248_320, "hidden_size": 3072}
    assert head_shapes({"text_config": text}, ranks=1) == [(248_320, 3072, "int8")]
    assert head_shapes({"text_config": text}, ranks=2) == [(124_160, 3072, "int8")]
    assert head_shapes({"vocab_size": 500, "hidden_size": 128}, ranks=1) == [(512, 128, "int8")]
    block = {"draft_lm_head": {"rows": 32_768, "dtype": "int8", "file": "d.json"}}
    config = {"text_config": text, "quantization_config": {"spark_hybrid": block}}
    assert head_shapes(config, ranks=1) == [(248_320, 3072, "int8"), (32_768, 3072, "int8")]
    assert head_shapes(config, ranks=2) == [(124_160, 3072, "int8"), (16_384, 3072, "int8")]
    assert head_shapes(config, ranks=3)[1] == (10_923, 3072, "int8"), "the longest of the shares"
    with pytest.raises(ValueError, match="vocab_size"):
        head_shapes({}, ranks=1)


def test_the_served_model_is_read_from_the_container_s_command() -> None:
    guard = ["/opt/venv/bin/python", "-I", "-m", "sparkdeploy_vllm.guard", "--max-restarts", "3"]
    serve = ["--", "vllm", "serve", "/m/ck/qwen-0123", "--served-model-name", "qwen"]
    alone = "\0".join([*guard, *serve, ""]).encode()
    model = Path("/m/ck/qwen-0123")
    assert served(alone) == Served(model)
    assert served(alone + b"--tensor-parallel-size\x002\0") == Served(model, ranks=2)
    for other in (b"", b"sleep\x00infinity\0", b"ray\0start\0"):
        with pytest.raises(ValueError, match="--model"):
            served(other)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [([], 1, "serves no model"), (["--model", "/nowhere"], 1, "nothing was written")],
)
def test_the_command_says_what_it_lacks(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparkdeploy_vllm.tune_head", *arguments],
        cwd=PLUGIN_TREE,
        env={"XDG_CACHE_HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert list(tmp_path.iterdir()) == []
