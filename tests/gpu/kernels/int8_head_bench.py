"""Time the INT8 head beside BF16 cuBLAS, a looping GEMV and the memory floor, all in one run.

A second table times its FP32 logits, which vLLM gets, beside BF16 ones, alone and with the copy to
FP32 that vLLM's sampler makes of those.

`python tests/gpu/kernels/int8_head_bench.py [--rounds N] [--pause-ms N]` prints Markdown tables.
Needs a CUDA GPU with 8 GB free, torch and Triton; vLLM is not needed. Without the pause between
replays, cuBLAS drives a big card into its power limit, and the lower clock slows what runs next.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import triton
import triton.language as tl

PLUGIN = Path(__file__).resolve().parents[3] / "sparkdeploy" / "vllm_plugin"
sys.path.insert(0, str(PLUGIN))
from sparkdeploy_vllm.kernels.head import compile_tiles, head_logits  # noqa: E402
from sparkdeploy_vllm.kernels.head_configs import shipped_for, tile_for  # noqa: E402

SHAPES = ((248_320, 3072), (248_320, 2048))
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)
BARS = {
    1: 0.95,
    2: 0.95,
    3: 0.95,
    4: 0.95,
    6: 0.92,
    8: 0.92,
    12: 0.92,
    16: 0.92,
    32: 0.85,
    64: 0.65,
}
"""Least share of the floor's speed, by rows, with FP32 logits."""
OUT_BARS = {**dict.fromkeys((1, 2, 3, 4, 6, 8, 12, 16), 1.02), 64: 1.05}
"""Most time with FP32 logits over that with BF16 ones, by rows."""
GEMV_ROWS = 4
LOOPED_ROWS = 32
"""Beyond this many rows the looping GEMV is not timed: it would take the run's time."""
LAUNCHES = 8


@dataclass(frozen=True, slots=True)
class Effort:
    """How often each figure is measured, and how long the card rests before each time."""

    rounds: int
    pause_ms: float


def main() -> int:
    """Print one table per shape; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="replays per figure (median)")
    parser.add_argument("--pause-ms", type=float, default=10, help="rest before each replay")
    effort = Effort(**vars(parser.parse_args()))
    card = torch.cuda.get_device_name()
    say(f"card: {card}; torch {torch.__version__}; triton {triton.__version__}; {effort}")
    missed = [
        miss
        for shape in SHAPES
        for bench in (bench_shape, bench_outputs)
        for miss in bench(*shape, effort)
    ]
    say("\nall bars met" if not missed else "\nmissed: " + "; ".join(missed))
    return 1 if missed else 0


def bench_shape(vocab: int, hidden: int, effort: Effort) -> list[str]:
    """Print the table of one head; return the bars it misses."""
    head = Head(vocab, hidden)
    compile_tiles(head.quantized[0], head.scales, torch.bfloat16)
    copy_ms, *_ = median_ms([head.copy], effort)
    floor_ms = copy_ms / 2
    rate = vocab * hidden / floor_ms / 1e9
    say(f"\n{vocab} x {hidden}, ms; the floor is {floor_ms:.4f} (copy bandwidth {rate:.2f} TB/s)\n")
    say("| rows | ours | share of the floor's speed | BF16 cuBLAS | looping GEMV | tile |")
    say("|---|---|---|---|---|---|")
    missed = []
    for rows in ROWS:
        ours, cublas, gemv = head.times(rows, effort)
        share = floor_ms / ours
        tile = tile_for(shipped_for(torch.cuda.get_device_capability()).tiles, rows)
        name = f"{tile.path} {tile.rows}x{tile.vocab}x{tile.hidden}"
        looped = f"{gemv:.3f}" if gemv else "-"
        say(f"| {rows} | {ours:.4f} | {share:.3f} | {cublas:.4f} | {looped} | {name} |")
        if share < BARS.get(rows, 0):
            missed.append(f"{rows} rows of {hidden}: {share:.3f} of the floor's speed")
        if rows <= 64 and ours > cublas:
            missed.append(f"{rows} rows of {hidden}: slower than BF16")
    return missed


def bench_outputs(vocab: int, hidden: int, effort: Effort) -> list[str]:
    """Print the times of one head with FP32 and with BF16 logits; return the bars they miss."""
    head = Head(vocab, hidden)
    for dtype in (torch.float32, torch.bfloat16):
        compile_tiles(head.quantized[0], head.scales, torch.bfloat16, out_dtype=dtype)
    say(f"\n{vocab} x {hidden}, ms by what the logits are\n")
    say("| rows | FP32 | BF16 | FP32 over BF16 | BF16, then copied to FP32 |")
    say("|---|---|---|---|---|")
    missed = []
    for rows in (rows for rows in ROWS if rows <= 64):
        exact, rounded, copied = head.times_of_outputs(rows, effort)
        ratio = exact / rounded
        say(f"| {rows} | {exact:.4f} | {rounded:.4f} | {ratio:.3f} | {copied:.4f} |")
        if ratio > OUT_BARS.get(rows, float("inf")):
            missed.append(f"{rows} rows of {hidden}: FP32 logits take {ratio:.3f} of BF16's time")
    return missed


class Head:
    """Two heads of one shape: launches alternate between them, so that no cache keeps one."""

    def __init__(self, vocab: int, hidden: int) -> None:
        torch.manual_seed(0)
        size = (vocab, hidden)
        self.quantized = [
            torch.randint(-127, 128, size, dtype=torch.int8, device="cuda") for _ in range(2)
        ]
        self.plain = [
            torch.randn(size, device="cuda", dtype=torch.bfloat16).mul_(0.02) for _ in range(2)
        ]
        self.target = torch.empty_like(self.quantized[0])
        self.scales = torch.rand(vocab, device="cuda") * 1e-3

    def copy(self, turn: int) -> None:
        """Read and write as many bytes as one INT8 matrix has."""
        self.target.copy_(self.quantized[turn])

    def times(self, rows: int, effort: Effort) -> tuple[float, float, float | None]:
        """Milliseconds of our kernel, of cuBLAS and of the looping GEMV."""
        x = self.inputs(rows)

        def ours(turn: int) -> None:
            head_logits(x, self.quantized[turn], self.scales)

        def cublas(turn: int) -> None:
            torch.nn.functional.linear(x, self.plain[turn])

        def gemv(turn: int) -> None:
            looping_gemv(x, self.quantized[turn], self.scales)

        if rows > LOOPED_ROWS:
            first, second = median_ms([ours, cublas], effort)
            return first, second, None
        first, second, third = median_ms([ours, cublas, gemv], effort)
        return first, second, third

    def times_of_outputs(self, rows: int, effort: Effort) -> list[float]:
        """Milliseconds with FP32 logits, with BF16 ones, and with those copied to FP32."""
        x = self.inputs(rows)

        def logits(turn: int, dtype: torch.dtype) -> torch.Tensor:
            return head_logits(x, self.quantized[turn], self.scales, out_dtype=dtype)

        def exact(turn: int) -> None:
            logits(turn, torch.float32)

        def rounded(turn: int) -> None:
            logits(turn, torch.bfloat16)

        def copied(turn: int) -> None:
            logits(turn, torch.bfloat16).float()

        return median_ms([exact, rounded, copied], effort)

    def inputs(self, rows: int) -> torch.Tensor:
        """BF16 activations."""
        return torch.randn(rows, self.plain[0].shape[1], device="cuda").to(torch.bfloat16)


def median_ms(contenders: list[Callable[[int], None]], effort: Effort) -> list[float]:
    """Median milliseconds per launch; the contenders take turns, LAUNCHES to a captured graph."""
    graphs = [captured(contender) for contender in contenders]
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(effort.rounds):
        for graph, own in zip(graphs, times, strict=True):
            time.sleep(effort.pause_ms / 1000)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            own.append(begin.elapsed_time(end) / LAUNCHES)
    return [statistics.median(own) for own in times]


def captured(contender: Callable[[int], None]) -> torch.cuda.CUDAGraph:
    """A graph of LAUNCHES launches, alternating between the two heads, replayed once."""
    for turn in range(2):
        contender(turn)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in range(LAUNCHES):
            contender(launch % 2)
    graph.replay()
    return graph


def looping_gemv(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The usual INT8 GEMV: up to 4 rows a pass without tensor cores, one pass per row beyond."""
    rows, hidden = x.shape
    vocab = weight.shape[0]
    logits = torch.empty((rows, vocab), dtype=x.dtype, device=x.device)
    step = rows if rows <= GEMV_ROWS else 1
    for row in range(0, rows, step):
        _gemv[(triton.cdiv(vocab, 64),)](
            x[row:], weight, scales, logits[row:], vocab, HIDDEN=hidden, ROWS=step, num_warps=4
        )
    return logits


@triton.jit
def _gemv(x, weight, scales, logits, vocab, HIDDEN: tl.constexpr, ROWS: tl.constexpr):  # noqa: ANN001, ANN202, N803, PLR0917
    word = tl.program_id(0) * 64 + tl.arange(0, 64)
    k = tl.arange(0, 256)
    inside = tl.minimum(word, vocab - 1).to(tl.int64)
    scale = tl.load(scales + inside)
    first = tl.zeros((64,), tl.float32)
    second = tl.zeros((64,), tl.float32)
    third = tl.zeros((64,), tl.float32)
    fourth = tl.zeros((64,), tl.float32)
    for step in tl.range(0, HIDDEN, 256, num_stages=3):
        tile = tl.load(weight + inside[:, None] * HIDDEN + step + k[None, :]).to(tl.float32)
        first += tl.sum(tile * tl.load(x + step + k).to(tl.float32)[None, :], 1)
        if ROWS > 1:
            second += tl.sum(tile * tl.load(x + HIDDEN + step + k).to(tl.float32)[None, :], 1)
        if ROWS > 2:
            third += tl.sum(tile * tl.load(x + 2 * HIDDEN + step + k).to(tl.float32)[None, :], 1)
        if ROWS > 3:
            fourth += tl.sum(tile * tl.load(x + 3 * HIDDEN + step + k).to(tl.float32)[None, :], 1)
    mask = word < vocab
    tl.store(logits + word, first * scale, mask=mask)
    if ROWS > 1:
        tl.store(logits + vocab + word, second * scale, mask=mask)
    if ROWS > 2:
        tl.store(logits + 2 * vocab + word, third * scale, mask=mask)
    if ROWS > 3:
        tl.store(logits + 3 * vocab + word, fourth * scale, mask=mask)


def say(line: str) -> None:
    """Print at once, so that a run cut short shows what it measured."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
