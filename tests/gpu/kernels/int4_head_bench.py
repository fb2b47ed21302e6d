"""Time the INT4 head beside the INT8 head and BF16 cuBLAS, and its tiles beside one another.

`python tests/gpu/kernels/int4_head_bench.py [--rounds N] [--pause-ms N] [--sweep ROWS...]`
prints a Markdown table, or with `--sweep` tiles that do not ship by the time they take at so many
rows. Needs a CUDA GPU with 10 GB free, torch and Triton; vLLM is not needed.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"

import argparse
import itertools
import sys
from dataclasses import dataclass, replace

import torch
import triton
from int8_head_bench import Effort, median_ms, say
from sparkdeploy_vllm.int4_head import quantize_head
from sparkdeploy_vllm.kernels.head import compile_tiles, head_logits, head_with_tile
from sparkdeploy_vllm.kernels.head_configs import HeadTile, shipped_for, tile_for
from sparkdeploy_vllm.maths import quantize_rows

VOCAB, HIDDEN = 248_320, 3072
ROWS = (1, 2, 3, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Turns:
    """Two heads of each kind, so that no cache keeps one."""

    plain: list[torch.Tensor]
    int8: list[tuple[torch.Tensor, torch.Tensor]]
    int4: list[tuple[torch.Tensor, torch.Tensor]]
    target: torch.Tensor


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="replays per figure (median)")
    parser.add_argument("--pause-ms", type=float, default=10, help="rest before each replay")
    parser.add_argument(
        "--sweep", type=int, nargs="*", default=[], metavar="ROWS", help="time other tiles too"
    )
    options = parser.parse_args()
    effort = Effort(options.rounds, options.pause_ms)
    card = torch.cuda.get_device_name()
    say(f"card: {card}; torch {torch.__version__}; triton {triton.__version__}; {effort}")
    turns = make_turns()
    if options.sweep:
        sweep(turns, options.sweep, effort)
    else:
        table(turns, effort)
    return 0


def make_turns() -> Turns:
    torch.manual_seed(0)
    plain = [
        torch.randn((VOCAB, HIDDEN), device="cuda", dtype=torch.bfloat16).mul_(0.02)
        for _ in range(2)
    ]
    int8, int4 = [quantize_rows(one) for one in plain], [quantize_head(one) for one in plain]
    compile_tiles(*int8[0], torch.bfloat16)
    compile_tiles(*int4[0], torch.bfloat16)
    return Turns(plain, int8, int4, torch.empty_like(int4[0][0]))


def table(turns: Turns, effort: Effort) -> None:
    """Print milliseconds by rows, and the share of the speed of a copy of the packed bytes."""
    copy_ms, *_ = median_ms([lambda turn: turns.target.copy_(turns.int4[turn][0])], effort)
    scale_bytes = 2 * turns.int4[0][1].numel()
    floor_ms = copy_ms / 2 * (1 + scale_bytes / turns.target.numel())
    say(f"\n{VOCAB} x {HIDDEN}, ms; INT4's floor with its scales is {floor_ms:.4f}\n")
    say("| rows | INT4 | share of the floor's speed | INT8 | INT8, BF16 out | BF16 cuBLAS |")
    say("|---|---|---|---|---|---|")
    for rows in ROWS:
        x = torch.randn(rows, HIDDEN, device="cuda").to(torch.bfloat16)
        contenders = [
            lambda turn, x=x: head_logits(x, *turns.int4[turn]),
            lambda turn, x=x: head_logits(x, *turns.int8[turn]),
            lambda turn, x=x: head_logits(x, *turns.int8[turn], out_dtype=torch.bfloat16),
            lambda turn, x=x: torch.nn.functional.linear(x, turns.plain[turn]),
        ]
        int4, int8, rounded, cublas = median_ms(contenders, effort)
        others = " | ".join(f"{ms:.4f}" for ms in (int8, rounded, cublas))
        say(f"| {rows} | {int4:.4f} | {floor_ms / int4:.3f} | {others} |")


def sweep(turns: Turns, swept: list[int], effort: Effort) -> None:
    """Print the times of tiles around those that ship, the fastest first."""
    for rows in swept:
        x = torch.randn(rows, HIDDEN, device="cuda").to(torch.bfloat16)
        shipped = tile_for(shipped_for(torch.cuda.get_device_capability(), "int4").tiles, rows)
        timed = [(time_of(tile, x, turns, effort), tile) for tile in around(shipped)]
        say(f"\n{rows} rows: {shipped} ships")
        for ms, tile in sorted(timed, key=lambda one: one[0])[:8]:
            sizes = f"{tile.rows}x{tile.vocab}x{tile.hidden}"
            say(f"  {ms:.4f}  {sizes}, {tile.warps} warps, {tile.stages} stages")


def around(tile: HeadTile) -> list[HeadTile]:
    sizes = itertools.product((64, 128, 256), (128, 256), (4, 8), (3, 4))
    return [
        replace(tile, vocab=vocab, hidden=hidden, warps=warps, stages=stages)
        for vocab, hidden, warps, stages in sizes
    ]


def time_of(tile: HeadTile, x: torch.Tensor, turns: Turns, effort: Effort) -> float:
    """Milliseconds; infinite where the card refuses the tile."""

    def run(turn: int) -> None:
        head_with_tile(tile, x, (*turns.int4[turn], None), torch.float32)

    try:
        return median_ms([run], replace(effort, rounds=5))[0]
    except Exception:  # noqa: BLE001 - a compiler has many ways to refuse a tile
        return float("inf")


if __name__ == "__main__":
    sys.exit(main())
