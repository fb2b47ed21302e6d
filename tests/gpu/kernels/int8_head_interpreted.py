"""The INT8 head's kernels and their choice of tiles without a GPU, in Triton's interpreter.

`python tests/gpu/kernels/int8_head_interpreted.py`; exit 0 or 1. Needs torch (a CPU build will do),
NumPy and Triton 3.6, some minutes, and says nothing about speed or about what a compiler makes of
the kernels: their indices, masks and arithmetic are run as they stand, by Python.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined
PLUGIN = Path(__file__).resolve().parents[3] / "sparkdeploy" / "vllm_plugin"
sys.path.insert(0, str(PLUGIN))
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402, F401 - the interpreter looks for it in each file
from sparkdeploy_vllm.kernels import head as kernels  # noqa: E402
from sparkdeploy_vllm.kernels import int8_head  # noqa: E402
from sparkdeploy_vllm.kernels.head_choice import Choice  # noqa: E402
from sparkdeploy_vllm.kernels.head_configs import GB10, HOPPER, HeadTile  # noqa: E402
from sparkdeploy_vllm.kernels.head_tiles_file import (  # noqa: E402
    ROW_CLASSES,
    HeadKey,
    TunedTile,
    kernel_fingerprint,
    tuned_path,
    write_tuned,
)
from sparkdeploy_vllm.kernels.head_tuning import Card, candidates  # noqa: E402
from sparkdeploy_vllm.maths import int8_linear, quantize_rows  # noqa: E402
from torch import Tensor  # noqa: E402

HEADS = ((200, 512), (130, 272), (7, 16))
"""Vocabularies and hidden sizes; the last two fill no tile."""
SUMMATION = 1e-6
DTYPE = torch.float16
"""The interpreter of Triton 3.6 multiplies the bits of BF16 as if they were integers."""
SPARK = Card((12, 1), 99 << 10, GB10.tiles)
H200 = Card((9, 0), 227 << 10, HOPPER.tiles)
TUNED = (
    HeadTile("gathered", rows=8, vocab=128, hidden=128, warps=4, stages=4),
    HeadTile("gathered", rows=64, vocab=64, hidden=64, warps=8, stages=2),
)


@triton.jit
def _as_it_is(product):  # noqa: ANN001, ANN202
    return product


def check_every_tile_that_ships_or_may_win_is_right() -> None:
    # Warps and stages are the compiler's matter.
    seen = {
        (tile.path, tile.rows, tile.vocab, tile.hidden): tile
        for card in (SPARK, H200)
        for rows in ROW_CLASSES
        for tile in (*card.shipped, *candidates(rows, card))
    }
    for vocab, hidden in HEADS:
        for tile in seen.values():
            for rows in (1, tile.rows + 1):
                hold(tile, vocab, hidden, rows)
    print(f"  {len(seen)} tiles, {len(HEADS)} heads")


def check_a_bias_is_added_and_strides_are_followed() -> None:
    quantized, scales = quantize_rows(torch.randn(130, 272))
    bias = torch.randn(130)
    x = torch.randn(10, 3 * 272).to(DTYPE)[::2, 272 : 2 * 272]
    for tile in (HOPPER.tiles[0], HOPPER.tiles[2]):
        got = kernels.head_with_tile(tile, x, (quantized, scales, bias), torch.float32)
        exact = (x.double() @ quantized.double().T) * scales.double() + bias
        assert relative_error(got, exact) < SUMMATION


def check_logits_are_fp32_and_close_ones_are_no_tie() -> None:
    # 20 and a quarter of a step of 16 bits more: rounded they are one.
    apart = 16 * torch.finfo(DTYPE).eps / 4
    weight = torch.full((2, 128), 127, dtype=torch.int8)
    scales = torch.tensor([20.0, 20.0 + apart]) / (127 * 128)
    x = torch.ones(3, 128, dtype=DTYPE)
    with a_card():
        exact = kernels.head_logits(x, weight, scales)
        rounded = kernels.head_logits(x, weight, scales, out_dtype=DTYPE)
    assert exact.dtype == torch.float32
    assert exact.argmax(dim=1).tolist() == [1, 1, 1]
    assert rounded.dtype == DTYPE
    assert rounded.unique().numel() == 1
    assert torch.equal(exact.to(DTYPE), rounded), "rounded once"
    assert relative_error(exact, int8_linear(x, weight, scales, None).double()) < SUMMATION


def check_a_row_s_fp32_logits_do_not_depend_on_the_other_rows() -> None:
    quantized, scales = quantize_rows(torch.randn(130, 272))
    matrix = (quantized, scales, None)
    for tile in (GB10.tiles[0], GB10.tiles[2], HOPPER.tiles[3]):
        x = torch.randn(tile.rows, 272).to(DTYPE)
        whole = kernels.head_with_tile(tile, x, matrix, torch.float32)
        # Each stays where it is: the interpreter's products, NumPy's, may differ by the place.
        for row in (0, tile.rows - 1):
            others = torch.randn(x.shape).to(DTYPE)
            others[row] = x[row]
            beside = kernels.head_with_tile(tile, others, matrix, torch.float32)
            assert torch.equal(beside[row], whole[row]), (tile, row)


def check_what_is_compiled_while_loading_is_what_serves() -> None:
    asked: list[torch.dtype] = []
    with a_card() as (key, folder, _):
        noting = kernels.head_with_tile

        def also(tile: HeadTile, x: Tensor, matrix: Any, out_dtype: torch.dtype) -> Tensor:
            asked.append(out_dtype)
            return noting(tile, x, matrix, out_dtype)

        with mock.patch.object(kernels, "head_with_tile", also):
            for served in (torch.float32, DTYPE):
                asked.clear()
                kernels.prepare(*head_of(key), DTYPE, folder, out_dtype=served)
                assert set(asked) == {served}


def check_tuned_tiles_are_used_and_chosen_by_rows() -> None:
    with a_card() as (key, folder, launched):
        write_tuned(key, [TunedTile(tile, 1.0, 2.0) for tile in TUNED], {}, folder)
        choice = prepared(key, folder)
        assert (choice.source, choice.tiles) == ("tuned", TUNED)
        assert [tile.rows for tile in launched] == [8, 64], "each is compiled while loading"
        for rows, expected in ((1, 8), (8, 8), (9, 64), (65, 64)):
            assert ask(key, rows, launched).rows == expected


def check_without_a_file_a_spark_uses_what_ships() -> None:
    with a_card() as (key, folder, launched):
        assert prepared(key, folder).tiles == GB10.tiles
        assert ask(key, 17, launched) == GB10.tiles[2]


def check_a_broken_file_changes_nothing_but_says_so() -> None:
    with a_card() as (key, folder, launched):
        tuned_path(key, folder).write_text("{")
        choice = prepared(key, folder)
        assert (choice.source, choice.tiles) == ("shipped", GB10.tiles)
        assert "is not used" in choice.ignored
        assert ask(key, 1, launched) == GB10.tiles[0]


def check_tuned_tiles_that_do_not_run_are_given_up() -> None:
    with a_card() as (key, folder, launched):
        write_tuned(key, [TunedTile(tile, 1.0, 2.0) for tile in TUNED], {}, folder)
        plain = kernels.LAUNCHES["gathered"]

        def failing(tile: HeadTile, x: Tensor, matrix: Any, logits: Tensor) -> None:
            if tile == TUNED[1]:
                raise RuntimeError("out of resource: shared memory")
            plain(tile, x, matrix, logits)

        with mock.patch.dict(kernels.LAUNCHES, {"gathered": failing}):
            choice = prepared(key, folder)
            assert (choice.source, choice.tiles) == ("shipped", GB10.tiles)
            assert "out of resource" in choice.ignored
            assert ask(key, 64, launched) == GB10.tiles[3]


def check_a_matrix_that_the_kernels_do_not_take_is_left_alone() -> None:
    with a_card(), tempfile.TemporaryDirectory() as name:
        weight = torch.zeros((64, 24), dtype=torch.int8)
        assert kernels.prepare(weight, torch.ones(64), DTYPE, Path(name)) is None


def hold(tile: HeadTile, vocab: int, hidden: int, rows: int) -> None:
    """Assert that a tile gives the exact product."""
    drawn = torch.Generator().manual_seed(vocab + rows)
    quantized, scales = quantize_rows(torch.randn(vocab, hidden, generator=drawn))
    x = torch.randn(rows, hidden, generator=drawn).to(DTYPE)
    got = kernels.head_with_tile(tile, x, (quantized, scales, None), torch.float32)
    exact = (x.double() @ quantized.double().T) * scales.double()
    assert relative_error(got, exact) < SUMMATION, (tile, vocab, hidden, rows)


@contextmanager
def a_card() -> Iterator[tuple[HeadKey, Path, list[HeadTile]]]:
    """This CPU as if it were a GB10: its key, a folder, and the tiles that were launched."""
    key = HeadKey("NVIDIA GB10", (12, 1), 130, 272, kernel_fingerprint(), triton.__version__)
    launched: list[HeadTile] = []
    plain = kernels.head_with_tile

    def noting(tile: HeadTile, x: Tensor, matrix: Any, out_dtype: torch.dtype) -> Tensor:
        logits = plain(tile, x, matrix, out_dtype)
        launched.append(tile)
        return logits

    def fits(x: Tensor, weight: Tensor) -> bool:
        return x.dtype == DTYPE and weight.shape[1] % 16 == 0

    with (
        tempfile.TemporaryDirectory() as name,
        mock.patch.multiple(
            kernels,
            key_of=lambda _weight: key,
            fits=fits,
            _capability=lambda _index: key.capability,
            _chosen={},
            head_with_tile=noting,
        ),
    ):
        yield key, Path(name), launched


def head_of(key: HeadKey) -> tuple[torch.Tensor, torch.Tensor]:
    """An INT8 head of the key's shape."""
    drawn = torch.Generator().manual_seed(7)
    quantized, scales = quantize_rows(torch.randn(key.vocab, key.hidden, generator=drawn))
    return quantized, scales


def prepared(key: HeadKey, folder: Path) -> Choice:
    """Load a head as the plugin does."""
    choice = kernels.prepare(*head_of(key), DTYPE, folder)
    assert choice is not None
    return choice


def ask(key: HeadKey, rows: int, launched: list[HeadTile]) -> HeadTile:
    """The tile that so many rows ran with, and ran right, without a look at any file."""
    quantized, scales = head_of(key)
    x = torch.randn(rows, key.hidden).to(DTYPE)
    launched.clear()
    with mock.patch("pathlib.Path.open", side_effect=AssertionError("a file was read")):
        got = kernels.head_logits(x, quantized, scales, out_dtype=torch.float32)
    exact = (x.double() @ quantized.double().T) * scales.double()
    assert relative_error(got, exact) < SUMMATION
    (tile,) = launched
    return tile


def relative_error(got: torch.Tensor, truth: torch.Tensor) -> float:
    """Norm of the difference over the norm of `truth`."""
    return float((got.double() - truth).norm() / truth.norm())


def main() -> int:
    """Run every check of this file; 1 when one fails."""
    # Inline assembly, which the interpreter has none of; it is empty.
    int8_head._finished = _as_it_is
    failed = 0
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            begin_s = time.monotonic()
            try:
                check()
            except Exception:  # noqa: BLE001 - whatever a check raises is its finding
                failed += 1
                traceback.print_exc()
                print(f"FAILED {name}", flush=True)
            else:
                print(f"ok     {name} ({time.monotonic() - begin_s:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
