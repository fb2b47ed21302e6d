"""Time TurboQuant's decode kernel beside vLLM's own, FlashAttention on BF16 and the memory floor.

`python tests/gpu/kernels/turboquant_bench.py [--rounds N] [--short]` prints Markdown tables, all of
one run. Pages of eight layers take turns, so that L2 holds none. The floor is the bytes of the
pages over the read bandwidth measured first. Needs a Hopper GPU with 12 GB free and torch; what
needs vLLM is left out where vLLM is missing.
"""

# mypy: disable-error-code="import-not-found, no-untyped-def, untyped-decorator"

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from turboquant_cache import (
    BIG,
    FORMATS,
    PAGE,
    SMALL,
    AttentionLayer,
    Requests,
    Shape,
    attention_of,
    cuda_timing,
    decode_attention,
    new_scratch,
    random_pages,
    requests_of,
    vllm_kernel,
)

LAYERS = 8
CASES = ((1, 16_384), (1, 65_536), (1, 131_072), (1, 262_144), (8, 32_768))
BARS = {"4bit_nc": 0.5, "k8v4": 0.5, "k3v4_nc": 0.35, "3bit_nc": 0.35}
"""Least share of the floor's speed from 64K tokens on."""
READ_WORDS = 2**29
READ_BLOCK = 4096
READ_STEPS = 16


@dataclass(frozen=True, slots=True)
class Case:
    """Requests of one length, with so many query tokens each."""

    shape: Shape
    requests: int
    length: int
    tokens: int = 1

    @property
    def cells(self) -> int:
        """Tokens that are read, over all requests and KV heads."""
        return self.requests * self.length * self.shape.kv_heads


def main() -> int:
    """Print the tables; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="replays per figure (median)")
    parser.add_argument("--short", action="store_true", help="the 122B's shape alone")
    options = parser.parse_args()
    read_bytes_s = read_bandwidth(options.rounds)
    say(f"card: {torch.cuda.get_device_name()}; torch {torch.__version__}")
    say(f"it reads {read_bytes_s / 1e12:.2f} TB/s")
    missed = []
    for shape in (BIG,) if options.short else (BIG, SMALL):
        missed += bench_shape(shape, read_bytes_s, options.rounds)
    say("\nall bars met" if not missed else "\nmissed: " + "; ".join(missed))
    return 1 if missed else 0


def bench_shape(shape: Shape, read_bytes_s: float, rounds: int) -> list[str]:
    """Print the table of one shape; return the bars it misses."""
    say(f"\n{shape}, microseconds a layer\n")
    say("| format | requests x tokens | floor | ours | share | vLLM's own | BF16 FlashAttention |")
    say("|---|---|---|---|---|---|---|")
    missed = []
    for requests, length in CASES:
        case = Case(shape, requests, length)
        plain_ms = flash_ms(case, rounds)
        for name in FORMATS:
            missed += bench_format(case, name, (read_bytes_s, plain_ms), rounds)
    case = Case(shape, 1, 65_536, 3)
    bench_format(case, "4bit_nc", (read_bytes_s, flash_ms(case, rounds)), rounds)
    return missed


def bench_format(
    case: Case, name: str, beside: tuple[float, float | None], rounds: int
) -> list[str]:
    read_bytes_s, plain_ms = beside
    attention = attention_of(case.shape, name)
    floor_ms = case.cells * attention.slot.slot_bytes / read_bytes_s * 1e3
    pages, query, requests = questions(case, attention)
    ours_ms = median_ms(ours(attention, pages, query, requests), rounds)
    theirs_ms = their_ms(attention, pages, query, requests, rounds)
    share = floor_ms / ours_ms
    label = f"{case.requests} x {case.length:,}" + (f", {case.tokens} queries" * (case.tokens > 1))
    figures = " | ".join("-" if ms is None else f"{ms * 1e3:.1f}" for ms in (theirs_ms, plain_ms))
    measured = f"{floor_ms * 1e3:.1f} | {ours_ms * 1e3:.1f} | {share:.2f}"
    say(f"| {name} | {label} | {measured} | {figures} |")
    is_long = case.requests * case.length >= 65_536 and case.tokens == 1
    if is_long and share < BARS[name]:
        return [f"{case.shape.name} {name} {label}: {share:.2f} of the floor's speed"]
    return []


def questions(
    case: Case, attention: AttentionLayer
) -> tuple[list[torch.Tensor], torch.Tensor, Requests]:
    drawn = torch.Generator("cuda").manual_seed(3)
    blocks = case.requests * (case.length // PAGE)
    pages = [random_pages(attention, blocks, drawn) for _ in range(LAYERS)]
    requests = requests_of([case.length] * case.requests, [case.tokens] * case.requests, blocks)
    size = (case.requests * case.tokens, case.shape.query_heads, case.shape.head_dim)
    query = torch.randn(size, device="cuda", generator=drawn).bfloat16()
    return pages, query, requests


def ours(
    attention: AttentionLayer, pages: list[torch.Tensor], query: torch.Tensor, requests: Requests
) -> list[Callable[[], object]]:
    out = torch.empty_like(query)
    scratch = new_scratch(attention, query, requests)
    return [
        lambda layer=layer: decode_attention(attention, query, layer, requests, out, scratch)
        for layer in pages
    ]


def their_ms(
    attention: AttentionLayer,
    pages: list[torch.Tensor],
    query: torch.Tensor,
    requests: Requests,
    rounds: int,
) -> float | None:
    """vLLM's kernel; query tokens of a request are requests of their own there."""
    kernel = vllm_kernel(attention)
    if kernel is None:
        return None
    count = query.shape[0] // requests.lengths.shape[0]
    split = replace(
        requests,
        lengths=requests.lengths.repeat_interleave(count),
        table=requests.table.repeat_interleave(count, 0),
    )
    return median_ms([lambda layer=layer: kernel(query, layer, split) for layer in pages], rounds)


def flash_ms(case: Case, rounds: int) -> float | None:
    """FlashAttention over as many tokens of BF16 pages."""
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func
    except ImportError:
        return None
    shape, blocks = case.shape, case.requests * (case.length // PAGE)
    size = (blocks, PAGE, shape.kv_heads, shape.head_dim)
    layers = [torch.randn(2, *size, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)]
    requests = requests_of([case.length] * case.requests, [case.tokens] * case.requests, blocks)
    query = torch.randn(
        (case.requests * case.tokens, shape.query_heads, shape.head_dim), device="cuda"
    ).bfloat16()
    out = torch.empty_like(query)

    def attend(layer: torch.Tensor) -> None:
        flash_attn_varlen_func(
            q=query, k=layer[0], v=layer[1], out=out, cu_seqlens_q=requests.starts,
            max_seqlen_q=case.tokens, seqused_k=requests.lengths, max_seqlen_k=case.length,
            softmax_scale=shape.head_dim**-0.5, causal=True, block_table=requests.table,
            fa_version=3,
        )  # fmt: skip

    return median_ms([lambda layer=layer: attend(layer) for layer in layers], rounds)


def median_ms(layers: list[Callable[[], object]], rounds: int) -> float:
    """Median milliseconds of one layer's launches, all layers in one captured graph."""
    graph = cuda_timing.captured(lambda turn: layers[turn](), len(layers))
    return cuda_timing.median_ms([graph], rounds)[0] / len(layers)


def read_bandwidth(rounds: int) -> float:
    """Bytes a second of a kernel that only reads."""
    words = torch.randint(0, 9, (READ_WORDS,), dtype=torch.int32, device="cuda")
    programs = READ_WORDS // (READ_BLOCK * READ_STEPS)
    out = torch.empty(programs, dtype=torch.int32, device="cuda")
    read = lambda: _read[(programs,)](words, out, BLOCK=READ_BLOCK, STEPS=READ_STEPS, num_warps=8)  # noqa: E731
    return words.numel() * 4 / median_ms([read, read], rounds) * 1e3


@triton.jit
def _read(source, out, BLOCK: tl.constexpr, STEPS: tl.constexpr):  # noqa: ANN001, ANN202, N803
    program = tl.program_id(0).to(tl.int64)
    seen = tl.zeros((BLOCK,), tl.int32)
    for step in tl.range(0, STEPS):
        seen |= tl.load(source + (program * STEPS + step) * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + program, tl.max(seen, 0))


def say(line: str) -> None:
    """Print at once, so that a run cut short shows what it measured."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
