"""Where a call of TurboQuant's decode kernel spends its time, by stamps that its blocks leave.

`python tests/gpu/kernels/turboquant_stamps.py` prints a Markdown table: for each cut and context of
the 122B's attention, the cycles between points of a block (median and largest over the blocks),
and the nanoseconds from the first block's start to the last one's start and end. The kernel is
compiled with STAMPS for this; what it computes is the same. Of two launches it is the first alone.
Needs a Hopper GPU with 2 GB free and torch.
"""

# mypy: disable-error-code="import-not-found"

import tempfile
from pathlib import Path

import torch
from turboquant_bench import Case, questions, say
from turboquant_cache import BIG, attention_of, decode_attention, new_scratch
from turboquant_rivals import tile_of

# isort: split
from sparkdeploy_vllm.kernels import turboquant_decode, turboquant_launch
from sparkdeploy_vllm.kernels.turboquant_tiles import CUTS

FORMATS = ("4bit_nc", "3bit_nc")
CONTEXTS = (64, 65_536, 131_072)
COUNTERS, POINTS, MOST_BLOCKS = 1024, 16, 1024
WARM_CALLS = 6
PHASES = {
    "lengths": (1, 2),
    "queries": (2, 3),
    "first pages": (3, 4),
    "context": (4, 5),
    "other warps": (5, 6),
    "warps joined": (6, 7),
    "other blocks": (7, 8),
    "parts joined": (8, 9),
}
FIRST_NS, LAST_NS = 0, 10


def main() -> int:
    """Print the table."""
    say(f"card: {torch.cuda.get_device_name()}; torch {torch.__version__}\n")
    say(f"| format | tokens | cut | {' | '.join(PHASES)} | last start, ns | last end, ns |")
    say("|---" * (5 + len(PHASES)) + "|")
    room = COUNTERS + POINTS * MOST_BLOCKS
    stamps = torch.zeros(room, dtype=torch.int32, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        stamped = Path(folder, turboquant_launch.SOURCE.name)
        stamped.write_text(f"#define STAMPS\n{turboquant_launch.SOURCE.read_text()}")
        turboquant_launch.SOURCE = stamped
        turboquant_decode._arrivals = lambda *_: stamps  # type: ignore[assignment]
        for name in FORMATS:
            for context in CONTEXTS:
                for cut in CUTS:
                    row(name, context, cut, stamps)
    return 0


def row(name: str, context: int, cut: str, stamps: torch.Tensor) -> None:
    """One call after a few, each over another layer's pages."""
    attention = attention_of(BIG, name)
    pages, query, requests = questions(Case(BIG, 1, context), attention)
    out, scratch = torch.empty_like(query), new_scratch(attention, query, requests)
    tile = tile_of(cut, attention)
    for turn in range(WARM_CALLS):
        torch.cuda.synchronize()
        stamps.zero_()
        layer = pages[turn % len(pages)]
        decode_attention(attention, query, layer, requests, out, scratch, tile)
    torch.cuda.synchronize()
    by_block = stamps[COUNTERS:].view(MOST_BLOCKS, POINTS).cpu().long() & 0xFFFFFFFF
    ran = by_block[by_block[:, LAST_NS] > 0]
    cells = [spread(ran[:, after] - ran[:, before]) for before, after in PHASES.values()]
    begin = ran[:, FIRST_NS].min()
    ends = [int(ran[:, point].max() - begin) for point in (FIRST_NS, LAST_NS)]
    say(f"| {name} | {context:,} | {cut} | {' | '.join(cells)} | {ends[0]} | {ends[1]} |")


def spread(cycles: torch.Tensor) -> str:
    """Median and largest; a counter that went round in between is put right."""
    plain = torch.where(cycles < 0, cycles + 2**32, cycles)
    return f"{int(plain.median())} / {int(plain.max())}"


if __name__ == "__main__":
    raise SystemExit(main())
